import type { ReactNode } from "react";
import { Link } from "@tanstack/react-router";
import { may } from "../api/session";
import { Empty } from "../ui/feedback";
import { Page } from "../ui/layout";

const TABS = [
  ["/settings", "Project"],
  ["/settings/keys", "Keys"],
  ["/settings/agents", "Agents"],
  ["/settings/secrets", "Secrets"],
  ["/settings/budgets", "Budgets"],
  ["/settings/connections", "Forges"],
  ["/settings/policy", "Command policy"],
] as const;

export function SettingsFrame({ admin = true, actions, children }: { admin?: boolean; actions?: ReactNode; children: ReactNode }) {
  return (
    <Page title="Settings" actions={actions}>
      <nav aria-label="Settings" className="flex gap-1 overflow-x-auto border-b border-line">
        {TABS.map(([to, name]) => (
          <Link
            key={to}
            to={to}
            activeOptions={{ exact: true }}
            className="-mb-px border-b-2 border-transparent px-3 py-2 text-sm whitespace-nowrap text-dim hover:text-ink data-[status=active]:border-accent data-[status=active]:font-medium data-[status=active]:text-ink"
          >
            {name}
          </Link>
        ))}
      </nav>
      {admin && !may("admin") ? (
        <Empty title="This is for admins">Sign in with a key of the role admin to see and change it.</Empty>
      ) : (
        children
      )}
    </Page>
  );
}
