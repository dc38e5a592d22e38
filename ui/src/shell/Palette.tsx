// The command palette: any page and any live sandbox, by a few letters.
import { Command } from "cmdk";
import { useNavigate } from "@tanstack/react-router";
import { useSandboxes } from "../api/sandboxes";
import { nameOf } from "../sandbox/naming";
import { setTheme } from "./theme";
import { setSession } from "../api/session";

const ITEM =
  "flex cursor-pointer items-center justify-between gap-3 rounded-md px-3 py-2 data-[selected=true]:bg-accent-soft data-[selected=true]:text-accent";

const PAGES = [
  ["/board", "Board"],
  ["/sandboxes", "Sandboxes"],
  ["/forks", "Forks"],
  ["/repositories", "Repositories"],
  ["/monitoring", "Monitoring"],
  ["/logs", "Search the logs"],
  ["/audit", "Audit log"],
  ["/settings", "Project settings"],
  ["/settings/keys", "Keys"],
  ["/settings/agents", "Agents"],
  ["/settings/secrets", "Secrets"],
  ["/settings/budgets", "Budgets"],
  ["/settings/webhooks", "Webhooks"],
  ["/settings/connections", "Forges"],
  ["/settings/policy", "Command policy"],
] as const;

export function Palette({ onClose }: { onClose: () => void }) {
  const navigate = useNavigate();
  const { sandboxes } = useSandboxes("live");
  const go = (act: () => unknown) => () => {
    onClose();
    act();
  };
  return (
    <Command.Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      label="Command palette"
      overlayClassName="fixed inset-0 z-40 bg-black/50"
      contentClassName="fixed top-[12vh] left-1/2 z-50 w-[calc(100vw-24px)] max-w-xl -translate-x-1/2 overflow-hidden rounded-xl border border-line bg-surface shadow-xl"
    >
      <Command.Input
        autoFocus
        placeholder="A page, a sandbox, an action"
        className="w-full border-b border-line bg-transparent px-4 py-3 text-base outline-none placeholder:text-dim"
      />
      <Command.List className="max-h-[50vh] overflow-y-auto p-1.5 [&_[cmdk-group-heading]]:px-3 [&_[cmdk-group-heading]]:py-1.5 [&_[cmdk-group-heading]]:text-xs [&_[cmdk-group-heading]]:text-dim">
        <Command.Empty className="p-4 text-center text-dim">Nothing of that name.</Command.Empty>
        <Command.Group heading="Do">
          <Command.Item
            className={ITEM}
            onSelect={go(() => navigate({ to: "/sandboxes", search: { create: true } }))}
          >
            Create a sandbox
          </Command.Item>
          <Command.Item className={ITEM} onSelect={go(() => setTheme("light"))}>
            Light theme
          </Command.Item>
          <Command.Item className={ITEM} onSelect={go(() => setTheme("dark"))}>
            Dark theme
          </Command.Item>
          <Command.Item className={ITEM} onSelect={go(() => setTheme("system"))}>
            Theme of the system
          </Command.Item>
          <Command.Item className={ITEM} onSelect={go(() => setSession(undefined))}>
            Sign out
          </Command.Item>
        </Command.Group>
        <Command.Group heading="Go to">
          {PAGES.map(([to, name]) => (
            <Command.Item key={to} className={ITEM} onSelect={go(() => navigate({ to }))}>
              {name}
            </Command.Item>
          ))}
        </Command.Group>
        <Command.Group heading="Sandboxes">
          {sandboxes.slice(0, 200).map((sandbox) => (
            <Command.Item
              key={sandbox.id}
              value={`${nameOf(sandbox)} ${sandbox.id}`}
              className={ITEM}
              onSelect={go(() => navigate({ to: "/sandboxes/$id", params: { id: sandbox.id } }))}
            >
              <span className="truncate">{nameOf(sandbox)}</span>
              <span className="text-xs text-dim">{sandbox.state}</span>
            </Command.Item>
          ))}
        </Command.Group>
      </Command.List>
    </Command.Dialog>
  );
}
