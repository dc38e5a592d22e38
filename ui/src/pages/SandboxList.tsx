import { lazy, Suspense, useMemo, useRef } from "react";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { Box, Plus } from "lucide-react";
import { useAgentNames } from "../api/agents";
import { useSandboxes, useTrails, type Sandbox, type Shown, type Trail } from "../api/sandboxes";
import { may } from "../api/session";
import { nameOf, reasonText } from "../sandbox/naming";
import { StateBadge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { Empty, ErrorBox, Loading } from "../ui/feedback";
import { SelectField, TextField } from "../ui/fields";
import { bytes } from "../ui/format";
import { Page } from "../ui/layout";
import { Sparkline } from "../ui/Sparkline";
import { Ago, Until } from "../ui/time";
import { useTyped } from "../ui/typed";

// The form has more in it than the list, and most visits do not open it.
const CreateSandbox = lazy(() =>
  import("../sandbox/CreateSandbox").then((module) => ({ default: module.CreateSandbox })),
);

const COLUMNS =
  "grid grid-cols-[minmax(0,1fr)_auto] items-center gap-x-4 px-4 md:grid-cols-[minmax(0,2.2fr)_110px_minmax(0,1.4fr)_minmax(0,1fr)_88px_104px_84px_84px]";

function Row({ sandbox, trail, owner }: { sandbox: Sandbox; trail: Trail | undefined; owner: string }) {
  const ended = sandbox.ended_at !== null && sandbox.ended_at !== undefined;
  const cpu = trail?.cpu.at(-1);
  const memory = trail?.memory.at(-1);
  const why = reasonText(sandbox.reason);
  return (
    // The link of the name covers the row, which stays a row for those who hear it.
    <div
      role="row"
      title={why === "" ? undefined : why}
      className={classes(COLUMNS, "relative h-full border-b border-line hover:bg-raised")}
    >
      <span role="cell" className="min-w-0">
        <Link
          to="/sandboxes/$id"
          params={{ id: sandbox.id }}
          className="block truncate font-medium after:absolute after:inset-0 focus-visible:outline-none focus-visible:after:outline-2 focus-visible:after:-outline-offset-2 focus-visible:after:outline-accent"
        >
          {nameOf(sandbox)}
        </Link>
        <span className="block truncate font-mono text-xs text-dim">
          {nameOf(sandbox) === sandbox.id ? sandbox.template : `${sandbox.id} · ${sandbox.template}`}
        </span>
      </span>
      <span role="cell">
        <StateBadge state={sandbox.state} />
      </span>
      <span role="cell" className="hidden truncate text-dim md:block">
        {why === "" ? "–" : why}
      </span>
      <span role="cell" className="hidden truncate text-dim md:block">
        {owner}
      </span>
      <span role="cell" className="hidden text-dim md:block">
        <Ago at={sandbox.created_at} />
      </span>
      <span role="cell" className="hidden text-dim md:block">
        {ended ? "ended" : sandbox.state === "paused" ? "–" : <Until at={sandbox.deadline} />}
      </span>
      <span role="cell" className="hidden md:block">
        {cpu !== undefined && <Sparkline values={trail?.cpu ?? []} top={100} label={`CPU ${cpu.toFixed(0)} %`} />}
      </span>
      <span role="cell" className="hidden md:block">
        {memory !== undefined && (
          <Sparkline values={trail?.memory ?? []} top={trail?.memTotal ?? 1} label={`Memory ${bytes(memory)}`} />
        )}
      </span>
    </div>
  );
}

function matches(sandbox: Sandbox, words: string[]): boolean {
  if (words.length === 0) return true;
  const meta = Object.entries(sandbox.metadata).map(([name, value]) => `${name}=${value}`);
  const text = [sandbox.id, sandbox.template, sandbox.state, sandbox.reason ?? "", sandbox.agent_id ?? "", ...meta]
    .join(" ")
    .toLowerCase();
  return words.every((word) => text.includes(word));
}

export function SandboxList() {
  const { show = "live", q = "", create = false, template, volume } = useSearch({ from: "/shell/sandboxes" });
  const navigate = useNavigate({ from: "/sandboxes" });
  const shown: Shown = show;
  const query = useSandboxes(shown);
  const names = useAgentNames();
  const [typed, setTyped] = useTyped(
    q,
    (text) => void navigate({ search: (old) => ({ ...old, q: text || undefined }), replace: true }),
  );
  const words = useMemo(() => typed.toLowerCase().split(/\s+/).filter(Boolean), [typed]);
  const found = useMemo(() => query.sandboxes.filter((sandbox) => matches(sandbox, words)), [query.sandboxes, words]);

  const scroller = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: found.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => 56,
    overscan: 8,
  });
  const rows = virtual.getVirtualItems();
  const visible = rows.map((row) => found[row.index]).filter((one): one is Sandbox => one !== undefined);
  const trails = useTrails(visible.filter((one) => one.state === "running").map((one) => one.id));
  const last = rows.at(-1)?.index ?? 0;
  if (query.hasNextPage && !query.isFetchingNextPage && last >= found.length - 20 && words.length === 0) {
    void query.fetchNextPage();
  }

  const setCreate = (open: boolean) =>
    void navigate({
      search: ({ show: which, q: filter }) => ({ show: which, q: filter, create: open ? true : undefined }),
      replace: true,
    });
  const newButton = (
    <Button
      tone="primary"
      onClick={() => setCreate(true)}
      disabled={!may("write")}
      title={may("write") ? undefined : "You may only read"}
      icon={<Plus aria-hidden className="size-4" />}
    >
      New sandbox
    </Button>
  );

  return (
    <Page title="Sandboxes" actions={newButton} fill>
      <div className="flex flex-wrap gap-2">
        <div className="min-w-40 flex-1 sm:max-w-sm">
          <TextField
            label="Filter"
            hideLabel
            type="search"
            placeholder="Filter by name, id, state, metadata"
            value={typed}
            onChange={(event) => setTyped(event.target.value)}
          />
        </div>
        <SelectField
          label="Which sandboxes"
          hideLabel
          value={shown}
          onChange={(event) => {
            const value = event.target.value as Shown;
            void navigate({ search: (old) => ({ ...old, show: value === "live" ? undefined : value }), replace: true });
          }}
        >
          <option value="live">Live</option>
          <option value="ended">Ended</option>
          <option value="all">All</option>
        </SelectField>
        <span role="status" className="self-center text-dim">
          {query.isPending ? "" : `${found.length}${query.hasNextPage ? "+" : ""} shown`}
        </span>
      </div>
      {query.error !== null && query.data === undefined ? (
        <ErrorBox error={query.error} retry={() => void query.refetch()} />
      ) : query.isPending ? (
        <Loading what="Loading sandboxes" />
      ) : found.length === 0 ? (
        <div className="rounded-lg border border-line bg-surface">
          {words.length > 0 ? (
            <Empty title="No sandbox matches the filter" />
          ) : (
            <Empty
              icon={<Box aria-hidden className="size-7" />}
              title={shown === "live" ? "No live sandboxes" : "No sandboxes yet"}
            >
              <p>A sandbox is a sealed place for one agent: its own files, processes and network.</p>
              {newButton}
            </Empty>
          )}
        </div>
      ) : (
        <div
          role="table"
          aria-label="Sandboxes"
          className="flex min-h-0 flex-1 flex-col rounded-lg border border-line bg-surface"
        >
          <div role="rowgroup">
            <div role="row" className={classes(COLUMNS, "hidden h-9 border-b border-line text-xs text-dim md:grid")}>
              {["Name", "State", "Why", "Owner", "Age", "Deadline", "CPU", "Memory"].map((name) => (
                <span key={name} role="columnheader">
                  {name}
                </span>
              ))}
            </div>
          </div>
          <div ref={scroller} role="rowgroup" className="min-h-0 flex-1 overflow-y-auto">
            <div className="relative" style={{ height: virtual.getTotalSize() }}>
              {rows.map((row) => {
                const sandbox = found[row.index];
                if (sandbox === undefined) return null;
                const agent = sandbox.agent_id;
                return (
                  <div
                    key={sandbox.id}
                    role="presentation"
                    className="absolute inset-x-0"
                    style={{ height: row.size, transform: `translateY(${row.start}px)` }}
                  >
                    <Row
                      sandbox={sandbox}
                      trail={sandbox.state === "running" ? trails.get(sandbox.id) : undefined}
                      owner={agent === null || agent === undefined ? "–" : (names.get(agent) ?? agent)}
                    />
                  </div>
                );
              })}
            </div>
          </div>
        </div>
      )}
      <Suspense>
        {create && <CreateSandbox template={template} volume={volume} onClose={() => setCreate(false)} />}
      </Suspense>
    </Page>
  );
}
