// One WebSocket of the project's events keeps what is shown up to date. It is a WebSocket and not a fetch because
// browsers open six connections to a server at most, over all tabs, and terminals need those.
import { useSyncExternalStore } from "react";
import type { QueryClient } from "@tanstack/react-query";
import { api, raw, type Schemas } from "./client";
import { placed, type SandboxPages, type Shown } from "./sandboxes";
import { onSession, session } from "./session";

export type Event = Schemas["Event"];

/** What the kinds of events begin with: `sandbox`, `task`, … */
type Subject = Event["kind"] extends infer Kind
  ? Kind extends `${infer Beginning}.${string}`
    ? Beginning
    : Kind
  : never;

export type Connection = "off" | "connecting" | "live" | "away";

let connection: Connection = "off";
const watchers = new Set<() => void>();
const readers = new Set<(event: Event) => void>();

function become(next: Connection) {
  if (connection === next) return;
  connection = next;
  for (const watcher of watchers) watcher();
}

export function useConnection(): Connection {
  return useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => connection,
  );
}

/** Hears every event of the project while subscribed. */
export function onEvent(reader: (event: Event) => void): () => void {
  readers.add(reader);
  return () => readers.delete(reader);
}

const NOT_ALLOWED = 1008;
const GATHER_MS = 120;
const MOST_SINGLY = 12;

/** Brings lists and details up to date with what events were about; many at once are one new look at the lists. */
class Freshener {
  private changed = new Set<string>();
  private kinds = new Set<Subject>();
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly queries: QueryClient) {}

  note(event: Event) {
    this.kinds.add(event.kind.split(".")[0] as Subject);
    if (event.kind.startsWith("sandbox.")) this.changed.add(event.subject);
    this.timer ??= setTimeout(() => this.refresh(), GATHER_MS);
  }

  everything() {
    void this.queries.invalidateQueries();
  }

  private refresh() {
    this.timer = undefined;
    const ids = [...this.changed];
    const kinds = new Set(this.kinds);
    this.changed.clear();
    this.kinds.clear();
    if (kinds.has("execution") || kinds.has("command")) void this.stale("executions", "processes");
    if (kinds.has("budget")) void this.stale("budgets");
    if (kinds.has("project")) void this.stale("quotas", "settings");
    if ((["repository", "pull", "forge", "issue", "status"] as const).some((kind) => kinds.has(kind)))
      void this.stale("repositories");
    if (kinds.has("snapshot")) void this.stale("snapshots", "lineage");
    if (kinds.has("task") || kinds.has("run")) void this.stale("tasks", "queue");
    if (kinds.has("schedule")) void this.stale("schedules");
    if (kinds.has("competition")) void this.stale("forks");
    if (kinds.has("webhook")) void this.stale("webhooks");
    if (kinds.has("artifact")) void this.stale("artifacts");
    if (kinds.has("volume")) void this.stale("volumes", "volume");
    if (kinds.has("template")) void this.stale("templates", "template");
    if (ids.length === 0) return;
    // Sandboxes that come and go change who mounts a volume.
    void this.stale("quotas", "history", "volume");
    if (ids.length > MOST_SINGLY) return void this.stale("sandboxes", "sandbox");
    for (const id of ids) void this.look(id);
  }

  private stale(...names: string[]) {
    return Promise.all(names.map((name) => this.queries.invalidateQueries({ queryKey: [name] })));
  }

  private async look(id: string) {
    const key = session()?.project?.projectId;
    const { data } = await api
      .GET("/api/v1/sandboxes/{id}", { params: { path: { id } } })
      .catch(() => ({ data: undefined }));
    if (data === undefined || key !== session()?.project?.projectId) return;
    this.queries.setQueryData(["sandbox", id], data);
    for (const [queryKey, list] of this.queries.getQueriesData<SandboxPages>({ queryKey: ["sandboxes"] })) {
      if (list !== undefined) this.queries.setQueryData(queryKey, placed(list, queryKey[1] as Shown, data));
    }
  }
}

/** Keeps the socket for as long as somebody is signed in. Comes back with the last number it saw, so it misses nothing. */
export function startLive(queries: QueryClient) {
  const freshener = new Freshener(queries);
  let socket: WebSocket | undefined;
  let retry: ReturnType<typeof setTimeout> | undefined;
  let used: string | undefined;
  let last: number | undefined;
  let failures = 0;

  const open = () => {
    clearTimeout(retry);
    const mineNow = session();
    if (used === undefined || mineNow?.project === undefined) return become("off");
    become(failures === 0 ? "connecting" : "away");
    const address = new URL("/api/v1/events/ws", location.href);
    address.protocol = address.protocol.replace("http", "ws");
    if (last !== undefined) address.searchParams.set("after", String(last));
    const mine = new WebSocket(address, [
      "coffer.events.v1",
      `coffer.session.${mineNow.secret}`,
      `coffer.project.${mineNow.project.projectId}`,
    ]);
    socket = mine;
    mine.onopen = () => {
      // Without a last number nothing tells what happened before: look at everything once.
      if (last === undefined && failures > 0) freshener.everything();
      failures = 0;
      become("live");
    };
    mine.onmessage = ({ data }) => {
      const event = JSON.parse(data as string) as Event;
      if (typeof event.sequence === "number") last = event.sequence;
      if (event.kind === "gap") return freshener.everything();
      freshener.note(event);
      for (const reader of readers) reader(event);
    };
    mine.onclose = ({ code }) => {
      if (socket !== mine) return;
      // The session has ended; the next request is told so, and that ends it here.
      if (code === NOT_ALLOWED) void raw("/api/v1/me").catch(() => undefined);
      failures += 1;
      become("away");
      retry = setTimeout(open, Math.min(8000, 250 * 2 ** failures) * (0.5 + Math.random()));
    };
  };

  const follow = () => {
    const mine = session();
    const next = mine?.project === undefined ? undefined : `${mine.secret} ${mine.project.projectId}`;
    if (next === used) return;
    used = next;
    last = undefined;
    failures = 0;
    const old = socket;
    socket = undefined;
    old?.close();
    queries.clear();
    open();
  };
  onSession(follow);
  addEventListener("online", () => connection === "away" && open());
  follow();
}
