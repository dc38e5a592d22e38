import { Link, Outlet, useParams, useRouterState } from "@tanstack/react-router";
import { useSandbox } from "../api/sandboxes";
import { Actions } from "../sandbox/Actions";
import { nameOf, reasonText } from "../sandbox/naming";
import { useTitle } from "../shell/title";
import { StateBadge } from "../ui/Badge";
import { ErrorBox, Loading } from "../ui/feedback";
import { TAB, Tabs } from "../ui/Tabs";
import { Until } from "../ui/time";

const TABS = [
  ["/sandboxes/$id", "Overview"],
  ["/sandboxes/$id/terminal", "Terminal"],
  ["/sandboxes/$id/notebook", "Notebook"],
  ["/sandboxes/$id/files", "Files"],
  ["/sandboxes/$id/processes", "Processes"],
  ["/sandboxes/$id/logs", "Logs"],
  ["/sandboxes/$id/network", "Network"],
  ["/sandboxes/$id/snapshots", "Snapshots"],
  ["/sandboxes/$id/events", "Events"],
] as const;

export function SandboxDetail() {
  const { id } = useParams({ from: "/shell/sandboxes/$id" });
  const query = useSandbox(id);
  const sandbox = query.data;
  const path = useRouterState({ select: (state) => state.location.pathname });
  const tab = TABS.find(([to]) => path.endsWith(to.replace("$id", id)))?.[1] ?? "Sandbox";
  useTitle(`${tab} · ${sandbox === undefined ? id : nameOf(sandbox)}`);
  if (sandbox === undefined) {
    return query.error !== null ? (
      <ErrorBox error={query.error} retry={() => void query.refetch()} className="m-5" />
    ) : (
      <Loading what="Loading the sandbox" />
    );
  }
  const why = reasonText(sandbox.reason);
  return (
    <div className="flex h-full min-h-0 flex-col">
      <div className="shrink-0 border-b border-line bg-surface px-3 pt-3 sm:px-5">
        <div className="flex flex-wrap items-center justify-between gap-x-4 gap-y-2">
          <div className="min-w-0">
            <div className="flex min-w-0 flex-wrap items-center gap-2">
              <Link to="/sandboxes" className="text-dim hover:text-ink">
                Sandboxes
              </Link>
              <span aria-hidden className="text-dim">
                /
              </span>
              <h1 className="max-w-[60vw] truncate text-lg font-semibold">{nameOf(sandbox)}</h1>
              <StateBadge state={sandbox.state} />
            </div>
            <p className="mt-0.5 text-xs text-dim">
              <span className="font-mono">{sandbox.id}</span>
              {why !== "" && ` · ${why}`}
              {sandbox.state === "running" && (
                <>
                  {" "}
                  · {sandbox.on_timeout === "kill" ? "ends" : "pauses"} <Until at={sandbox.deadline} />
                </>
              )}
            </p>
          </div>
          <Actions sandbox={sandbox} />
        </div>
        <Tabs label="Sandbox" className="pt-2">
          {TABS.map(([to, name]) => (
            <Link key={to} to={to} params={{ id }} activeOptions={{ exact: to === "/sandboxes/$id" }} className={TAB}>
              {name}
            </Link>
          ))}
        </Tabs>
      </div>
      <div className="min-h-0 flex-1 overflow-y-auto">
        <Outlet />
      </div>
    </div>
  );
}
