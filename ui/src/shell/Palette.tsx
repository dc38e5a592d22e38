// The command palette: any page, live sandbox, task and project, by a few letters.
import { useDeferredValue, useState } from "react";
import { Command } from "cmdk";
import { useNavigate } from "@tanstack/react-router";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useAgents } from "../api/agents";
import { api, take } from "../api/client";
import { useSandboxes } from "../api/sandboxes";
import { setSession, useSession } from "../api/session";
import { visitProject } from "../api/signIn";
import { useRepositories } from "../repositories/Repositories";
import { nameOf } from "../sandbox/naming";
import { toastError } from "../ui/feedback";
import { plainText } from "../ui/format";
import { matches } from "./matches";
import { useProjects } from "./ProjectSwitcher";
import { setTheme } from "./theme";

const ITEM =
  "flex cursor-pointer items-center justify-between gap-3 rounded-md px-3 py-2 data-[selected=true]:bg-accent-soft data-[selected=true]:text-accent";

const PAGES = [
  ["/board", "Board"],
  ["/sandboxes", "Sandboxes"],
  ["/forks", "Forks"],
  ["/templates", "Templates"],
  ["/volumes", "Volumes"],
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
  const { project, operatorKey } = useSession() ?? {};
  const [typed, setTyped] = useState("");
  const q = useDeferredValue(typed.trim().slice(0, 100));
  // The server looks through all tasks, so that one is found however old it is.
  const tasks = useQuery({
    queryKey: ["tasks", "found", q],
    queryFn: () => take(api.GET("/api/v1/tasks", { params: { query: { limit: 20, q: q || undefined } } })),
    enabled: project !== undefined,
    placeholderData: keepPreviousData,
  });
  const agents = useAgents();
  const repositories = useRepositories();
  const projects = useProjects(operatorKey !== undefined);
  const go = (act: () => unknown) => () => {
    onClose();
    act();
  };
  return (
    <Command.Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      label="Command palette"
      filter={matches}
      overlayClassName="fixed inset-0 z-40 bg-black/50"
      contentClassName="fixed top-[12vh] left-1/2 z-50 w-[calc(100vw-24px)] max-w-xl -translate-x-1/2 overflow-hidden rounded-xl border border-line bg-surface shadow-xl"
    >
      <Command.Input
        autoFocus
        value={typed}
        onValueChange={setTyped}
        placeholder="Find a task, sandbox, repository or page, or run an action"
        className="w-full border-b border-line bg-transparent px-4 py-3 text-base outline-none placeholder:text-dim"
      />
      <Command.List className="max-h-[50vh] overflow-y-auto p-1.5 [&_[cmdk-group-heading]]:px-3 [&_[cmdk-group-heading]]:py-1.5 [&_[cmdk-group-heading]]:text-xs [&_[cmdk-group-heading]]:text-dim">
        <Command.Empty className="p-4 text-center text-dim">No results.</Command.Empty>
        <Command.Group heading="Actions">
          <Command.Item className={ITEM} onSelect={go(() => navigate({ to: "/board", search: { new: true } }))}>
            New task
          </Command.Item>
          <Command.Item className={ITEM} onSelect={go(() => navigate({ to: "/sandboxes", search: { create: true } }))}>
            Create a sandbox
          </Command.Item>
          <Command.Item className={ITEM} onSelect={go(() => navigate({ to: "/templates/new" }))}>
            Build a template
          </Command.Item>
          <Command.Item className={ITEM} onSelect={go(() => setTheme("light"))}>
            Light theme
          </Command.Item>
          <Command.Item className={ITEM} onSelect={go(() => setTheme("dark"))}>
            Dark theme
          </Command.Item>
          <Command.Item className={ITEM} onSelect={go(() => setTheme("system"))}>
            Same theme as the system
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
        <Command.Group heading="Tasks">
          {tasks.data?.items.map((task) => (
            <Command.Item
              key={task.id}
              value={`${plainText(task.title)} ${task.id}`}
              className={ITEM}
              onSelect={go(() => navigate({ to: "/tasks/$task", params: { task: task.id } }))}
            >
              <span className="truncate">{plainText(task.title)}</span>
              <span className="text-xs text-dim">{task.state.replaceAll("_", " ")}</span>
            </Command.Item>
          ))}
        </Command.Group>
        <Command.Group heading="Repositories">
          {repositories.data?.items.map((one) => (
            <Command.Item
              key={one.id}
              value={`${plainText(one.name)} ${one.id}`}
              className={ITEM}
              onSelect={go(() => navigate({ to: "/repositories/$repository", params: { repository: one.id } }))}
            >
              <span className="truncate">{plainText(one.name)}</span>
              <span className="text-xs text-dim">repository</span>
            </Command.Item>
          ))}
        </Command.Group>
        <Command.Group heading="Agents">
          {agents.data?.items.map((one) => (
            <Command.Item
              key={one.id}
              value={`${plainText(one.name)} ${one.id}`}
              className={ITEM}
              onSelect={go(() => navigate({ to: "/settings/agents" }))}
            >
              <span className="truncate">{plainText(one.name)}</span>
              <span className="text-xs text-dim">agent</span>
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
        <Command.Group heading="Projects">
          {projects.data?.items.map((one) => (
            <Command.Item
              key={one.id}
              value={`${plainText(one.name)} ${one.id}`}
              className={ITEM}
              onSelect={go(() => visitProject(one.id, one.name).then(() => navigate({ to: "/sandboxes" }), toastError))}
            >
              <span className="truncate">{plainText(one.name)}</span>
              <span className="text-xs text-dim">project</span>
            </Command.Item>
          ))}
        </Command.Group>
      </Command.List>
    </Command.Dialog>
  );
}
