// The command palette: any page and action by a few letters, and any record of the project, found by the server.
import { useDeferredValue, useEffect, useState } from "react";
import { Command } from "cmdk";
import { useNavigate } from "@tanstack/react-router";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { LoaderCircle } from "lucide-react";
import { api, take, type Schemas } from "../api/client";
import { useSession } from "../api/session";
import { signOut, visitProject } from "../api/signIn";
import { ErrorBox, toastError } from "../ui/feedback";
import { plainText } from "../ui/format";
import { matches } from "./matches";
import { useProjects } from "./ProjectSwitcher";
import { setTheme } from "./theme";

type Hit = Schemas["SearchHit"];

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
  ["/settings/schedules", "Schedules"],
  ["/settings/webhooks", "Webhooks"],
  ["/settings/connections", "Forges"],
  ["/settings/policy", "Command policy"],
] as const;

const KINDS: [string, string][] = [
  ["task", "Tasks"],
  ["pull", "Pull requests"],
  ["repository", "Repositories"],
  ["sandbox", "Sandboxes"],
  ["agent", "Agents"],
  ["log", "Logs"],
];

const QUIET_MS = 120;

/** What the server finds for the text, a moment after it was typed. */
function useFound(typed: string, enabled: boolean) {
  const deferred = useDeferredValue(typed.trim().slice(0, 100));
  const [q, setQ] = useState(deferred);
  useEffect(() => {
    const timer = setTimeout(() => setQ(deferred), QUIET_MS);
    return () => clearTimeout(timer);
  }, [deferred]);
  const query = useQuery({
    queryKey: ["found", q],
    queryFn: async () => {
      const kinds = q === "" ? { kinds: "task" } : {};
      const found = await take(
        api.GET("/api/v1/search", { params: { query: { ...(q === "" ? {} : { q }), ...kinds, limit: 8 } } }),
      );
      return { q, items: found.items };
    },
    enabled,
    placeholderData: keepPreviousData,
    staleTime: 5000,
  });
  const isFresh = query.data?.q === typed.trim().slice(0, 100);
  return { ...query, isFresh };
}

/** Buttons of the page that have a key, such as Start and Edit on a task. */
function pageActions(): { name: string; key: string; button: HTMLElement }[] {
  const buttons = [...document.querySelectorAll<HTMLElement>("#content [data-key]")];
  return buttons
    .map((button) => ({
      button,
      key: button.dataset.key ?? "",
      name: (button.getAttribute("aria-label") ?? button.textContent ?? "").trim(),
    }))
    .filter(({ name, button }) => name !== "" && !button.hasAttribute("disabled"));
}

const titleOf = (hit: Hit) => plainText(hit.kind === "pull" ? `#${hit.number} ${hit.title}` : hit.title);

export function Palette({ onClose, onShortcuts }: { onClose: () => void; onShortcuts: () => void }) {
  const navigate = useNavigate();
  const { project, operating = false } = useSession() ?? {};
  const [typed, setTyped] = useState("");
  const [actions] = useState(pageActions);
  // An agent sees only what is its own, and the search is over the project.
  const found = useFound(typed, project !== undefined && project.agentId === undefined);
  const projects = useProjects(operating);
  const go = (act: () => unknown) => () => {
    onClose();
    act();
  };
  const open = (hit: Hit) => {
    const { kind, id } = hit;
    if (kind === "task") return navigate({ to: "/tasks/$task", params: { task: id } });
    if (kind === "repository") return navigate({ to: "/repositories/$repository", params: { repository: id } });
    if (kind === "pull")
      return navigate({
        to: "/repositories/$repository/pulls/$number",
        params: { repository: id, number: String(hit.number) },
      });
    if (kind === "sandbox") return navigate({ to: "/sandboxes/$id", params: { id } });
    if (kind === "log") return navigate({ to: "/logs", search: { q: typed.trim() } });
    return navigate({ to: "/settings/agents" });
  };
  const all = found.data?.items ?? [];
  return (
    <Command.Dialog
      open
      onOpenChange={(next) => !next && onClose()}
      label="Command palette"
      filter={matches}
      overlayClassName="fixed inset-0 z-40 bg-black/50"
      contentClassName="fixed top-[12vh] left-1/2 z-50 w-[calc(100vw-24px)] max-w-xl -translate-x-1/2 overflow-hidden rounded-xl border border-line bg-surface shadow-xl"
    >
      <div className="flex items-center border-b border-line pr-4">
        <Command.Input
          autoFocus
          value={typed}
          onValueChange={setTyped}
          placeholder="Find a task, pull request, sandbox or page, or run an action"
          className="w-full bg-transparent px-4 py-3 text-base outline-none placeholder:text-dim"
        />
        {found.isFetching && <LoaderCircle aria-hidden className="size-4 shrink-0 animate-spin text-dim" />}
      </div>
      {found.error !== null && found.data === undefined && project !== undefined && (
        <ErrorBox error={found.error} retry={() => void found.refetch()} className="m-2" />
      )}
      <Command.List className="max-h-[50vh] overflow-y-auto p-1.5 [&_[cmdk-group-heading]]:px-3 [&_[cmdk-group-heading]]:py-1.5 [&_[cmdk-group-heading]]:text-xs [&_[cmdk-group-heading]]:text-dim">
        <Command.Empty className="p-4 text-center text-dim">
          {found.isFetching || !found.isFresh ? "Searching…" : "No results."}
        </Command.Empty>
        {actions.length > 0 && (
          <Command.Group heading="This page">
            {actions.map(({ name, key, button }) => (
              <Command.Item key={key} value={`${name} this page`} className={ITEM} onSelect={go(() => button.click())}>
                {name}
                <kbd className="rounded border border-line px-1.5 text-xs">{key}</kbd>
              </Command.Item>
            ))}
          </Command.Group>
        )}
        <Command.Group heading="Actions">
          <Command.Item className={ITEM} onSelect={go(() => navigate({ to: "/board", search: { new: true } }))}>
            New task
            <kbd className="rounded border border-line px-1.5 text-xs">c</kbd>
          </Command.Item>
          <Command.Item className={ITEM} onSelect={go(() => navigate({ to: "/board", search: { waiting: true } }))}>
            Tasks that need you
          </Command.Item>
          <Command.Item className={ITEM} onSelect={go(() => navigate({ to: "/board", search: { list: true } }))}>
            Tasks as a list
          </Command.Item>
          <Command.Item className={ITEM} onSelect={go(() => navigate({ to: "/sandboxes", search: { create: true } }))}>
            Create a sandbox
          </Command.Item>
          <Command.Item className={ITEM} onSelect={go(() => navigate({ to: "/templates/new" }))}>
            Build a template
          </Command.Item>
          <Command.Item className={ITEM} onSelect={go(onShortcuts)}>
            Keyboard shortcuts
            <kbd className="rounded border border-line px-1.5 text-xs">?</kbd>
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
          <Command.Item className={ITEM} onSelect={go(() => void signOut())}>
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
        {KINDS.map(([kind, heading]) => {
          const hits = all.filter((hit) => hit.kind === kind);
          if (hits.length === 0) return null;
          return (
            <Command.Group key={kind} heading={heading}>
              {hits.map((hit, at) => (
                <Command.Item
                  key={`${kind} ${hit.id} ${hit.number ?? at}`}
                  value={`${titleOf(hit)} ${plainText(hit.about ?? "")} ${hit.id} ${hit.number ?? at}`}
                  keywords={found.isFresh ? [typed] : []}
                  className={ITEM}
                  onSelect={go(() => open(hit))}
                >
                  <span className={kind === "log" ? "truncate font-mono text-xs" : "truncate"}>{titleOf(hit)}</span>
                  <span className="max-w-40 shrink-0 truncate text-xs text-dim">
                    {plainText([hit.about, hit.state?.replaceAll("_", " ")].filter(Boolean).join(" · "))}
                  </span>
                </Command.Item>
              ))}
            </Command.Group>
          );
        })}
        <Command.Group heading="Projects">
          {projects.data?.items.map((one) => (
            <Command.Item
              key={one.id}
              value={`${plainText(one.name)} ${one.id}`}
              className={ITEM}
              onSelect={go(() => visitProject(one.id, one.name).then(() => navigate({ to: "/board" }), toastError))}
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
