// What the board knows of tasks beyond their own records: the newest attempts, competitions that wait for a pick, and what agents are
// doing this moment.
import { useMemo, useSyncExternalStore } from "react";
import { useQuery } from "@tanstack/react-query";
import { api, take, type Schemas } from "../api/client";
import { onEvent } from "../api/live";
import { usePrices } from "../api/prices";
import { onSession } from "../api/session";
import { plainText } from "../ui/format";
import { ownPull } from "../work/PullLink";
import { isAsking } from "./asking";
import type { Task } from "./tasks";

type Attempt = Schemas["Attempt"];

interface Progress {
  message?: string;
  tool?: string;
  about?: string;
}

/** By task. Only events have it, so a page that was just opened learns it with the next one. */
let doing = new Map<string, string>();
const watchers = new Set<() => void>();

export function doingOf({ message, tool, about }: Progress): string {
  const step = [tool, about].filter(Boolean).join(" ");
  return plainText(step !== "" ? step : ((message ?? "").split("\n")[0] ?? "")).slice(0, 140);
}

function change(next: Map<string, string>) {
  doing = next;
  for (const watcher of watchers) watcher();
}

onEvent((event) => {
  if (event.kind === "task.progress") {
    const progress = (event.payload as { doing?: Progress | null } | null)?.doing;
    if (progress) change(new Map(doing).set(event.subject, doingOf(progress)));
  } else if (event.kind === "task.moved" && doing.has(event.subject)) {
    const next = new Map(doing);
    next.delete(event.subject);
    change(next);
  }
});
onSession(() => change(new Map()));

export function useDoing(task: string): string | undefined {
  return useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => doing.get(task),
  );
}

/** The newest attempts by their run. */
function useNewestAttempts(): Map<string, Attempt> {
  const { data } = useQuery({
    queryKey: ["tasks", "newest-attempts"],
    queryFn: () => take(api.GET("/api/v1/attempts", { params: { query: { limit: 200 } } })),
  });
  return useMemo(() => new Map(data?.items.map((attempt) => [attempt.run_id, attempt])), [data]);
}

/** Competitions that wait for a person, by their task. */
function useWaiting(): Map<string, string> {
  const { data } = useQuery({
    queryKey: ["forks", "waiting"],
    queryFn: () => take(api.GET("/api/v1/sandboxes/fork", { params: { query: { state: "waiting", limit: 200 } } })),
  });
  return useMemo(
    () => new Map(data?.items.flatMap((one) => (one.task_id ? [[one.task_id, one.id] as [string, string]] : []))),
    [data],
  );
}

/** What sandboxes have cost, by sandbox. Nothing is asked for if sandboxes cost nothing. */
function useSandboxCosts(): Map<string, number> {
  const prices = usePrices();
  const priced = prices !== undefined && prices.cpu_second + prices.memory_gib_second + prices.sandbox_second > 0;
  const { data } = useQuery({
    queryKey: ["usage", "by-sandbox"],
    queryFn: () => take(api.GET("/api/v1/usage", { params: { query: { group: "sandbox", limit: 200 } } })),
    enabled: priced,
    refetchInterval: 15_000,
  });
  return useMemo(
    () =>
      new Map(data?.items.flatMap((one) => (one.sandbox_id ? [[one.sandbox_id, one.cost] as [string, number]] : []))),
    [data],
  );
}

export interface Activity {
  attempt?: Attempt;
  /** Whether an attempt is queued or runs. */
  working: boolean;
  /** The competition that waits for a pick. */
  pick?: string;
  /** Why the task needs a person, in a few words. */
  needs?: string;
  /** Of the newest attempt: its sandbox and its agent. */
  cost?: number;
}

const NEEDS: Record<string, string> = {
  check_failed: "Check failed",
  agent_failed: "Agent failed",
  budget_exceeded: "Over budget",
  budget_wanted: "Budget spent",
  interrupted: "Interrupted, waits for you",
  merge_conflict: "Conflict",
  no_changes: "No changes",
  model_key_refused: "Key refused",
  model_unavailable: "Model unavailable",
  not_started: "Agent did not start",
  setup_failed: "Set-up failed",
  invalid: "Agent did not start",
  unheard_messages: "Unread comments",
  undecided: "No winner picked",
};

export function needsOf(code: string): string {
  const words = plainText(code).replaceAll("_", " ");
  return NEEDS[code] ?? words.charAt(0).toUpperCase() + words.slice(1);
}

export function useActivities(): (task: Task) => Activity {
  const attempts = useNewestAttempts();
  const waiting = useWaiting();
  const costs = useSandboxCosts();
  return useMemo(
    () => (task) => {
      const attempt = task.run_id ? attempts.get(task.run_id) : undefined;
      const pick = waiting.get(task.id);
      const sandbox = attempt?.sandbox_id ? costs.get(attempt.sandbox_id) : undefined;
      const agent = attempt?.agent_cost ?? undefined;
      return {
        attempt,
        pick,
        working: attempt !== undefined && !attempt.ended_at && pick === undefined && !isAsking(task),
        needs:
          pick !== undefined ? "Pick a winner" : task.needs_attention ? needsOf(task.needs_attention.code) : undefined,
        cost: sandbox === undefined && agent === undefined ? undefined : (sandbox ?? 0) + (agent ?? 0),
      };
    },
    [attempts, waiting, costs],
  );
}

/** The pull request of a task with its checks and size, for repositories of this server. */
export function usePullFacts(task: Task) {
  const own = task.pull_url ? ownPull(task.pull_url) : undefined;
  const enabled = own !== undefined && task.state === "in_review" && Boolean(task.commit);
  const path = { repository: own?.repository ?? "", number: Number(own?.number ?? 0) };
  const size = useQuery({
    queryKey: ["repositories", path.repository, "pull", path.number, "size", task.commit],
    queryFn: () =>
      take(
        api.GET("/api/v1/repositories/{repository}/pulls/{number}/diff", { params: { path, query: { stat: true } } }),
      ),
    enabled,
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
  });
  const checks = useQuery({
    queryKey: ["repositories", path.repository, "statuses", task.commit],
    queryFn: () =>
      take(
        api.GET("/api/v1/repositories/{repository}/commits/{commit}/statuses", {
          params: { path: { repository: path.repository, commit: task.commit ?? "" } },
        }),
      ),
    enabled,
    retry: false,
  });
  const number = own?.number ?? /\/(?:pull|pulls|merge_requests)\/(\d+)/.exec(task.pull_url ?? "")?.[1];
  return {
    number,
    size: size.data,
    checks: checks.data !== undefined && checks.data.statuses.length > 0 ? checks.data.state : undefined,
  };
}
