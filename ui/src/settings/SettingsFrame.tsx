import type { ReactNode } from "react";
import { Link, useRouterState } from "@tanstack/react-router";
import { may } from "../api/session";
import { Empty } from "../ui/feedback";
import { Page } from "../ui/layout";
import { TAB, Tabs } from "../ui/Tabs";

const TABS = [
  ["/settings", "Project"],
  ["/settings/people", "People"],
  ["/settings/keys", "Keys"],
  ["/settings/agents", "Agents"],
  ["/settings/secrets", "Secrets"],
  ["/settings/budgets", "Budgets"],
  ["/settings/schedules", "Schedules"],
  ["/settings/connections", "Forges"],
  ["/settings/webhooks", "Webhooks"],
  ["/settings/policy", "Command policy"],
] as const;

export function SettingsFrame({
  admin = true,
  actions,
  children,
}: {
  admin?: boolean;
  actions?: ReactNode;
  children: ReactNode;
}) {
  const path = useRouterState({ select: (state) => state.location.pathname });
  const tab = TABS.find(([to]) => path.endsWith(to))?.[1] ?? "Project";
  return (
    <Page title="Settings" name={`${tab} · Settings`} actions={actions}>
      <Tabs label="Settings" className="border-b border-line">
        {TABS.map(([to, name]) => (
          <Link key={to} to={to} activeOptions={{ exact: true }} className={TAB}>
            {name}
          </Link>
        ))}
      </Tabs>
      {admin && !may("admin") ? (
        <Empty title="This is for admins">Sign in with a key of the role admin to see and change it.</Empty>
      ) : (
        children
      )}
    </Page>
  );
}
