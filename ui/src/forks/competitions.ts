// Forks that compete: what the pages ask, and how states are shown.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { api, take, type Schemas } from "../api/client";
import type { Tone } from "../ui/Badge";

export type Competition = Schemas["Competition"];
export type Entry = Schemas["CompetitionEntry"];

export const STATE_TONES: Record<string, Tone> = {
  queued: "dim",
  preparing: "warn",
  forked: "warn",
  working: "warn",
  checking: "warn",
  judging: "warn",
  waiting: "info",
  publishing: "warn",
  decided: "ok",
  done: "ok",
  failed: "bad",
  cancelled: "dim",
};

/** The colour of an entry: one whose check failed is never green. */
export const toneOf = ({ state, check }: Pick<Entry, "state" | "check">): Tone | undefined =>
  state === "done" && check?.passed === false ? "bad" : STATE_TONES[state];

/** What a state means for the one who looks. */
export const STATE_WORDS: Record<string, string> = {
  queued: "waits for its turn",
  waiting: "waits for you",
  decided: "decided",
};

export const wordOf = (state: string) => STATE_WORDS[state] ?? state;

/** A reason of the ranking, with names in place of numbers as far as they are known. */
export function named(reason: string, labels: Map<number, string>): string {
  return reason.replace(/\bentry (\d+)\b/g, (all, number: string) => labels.get(Number(number)) ?? all);
}

/** What an entry has cost: its sandbox, and its agent as it reports; undefined if neither is known. */
export function costOf({ cost, agent_cost: agent }: Pick<Entry, "cost" | "agent_cost">): number | undefined {
  const known = [cost, agent].filter((one) => one !== null && one !== undefined);
  return known.length === 0 ? undefined : known.reduce((sum, one) => sum + one, 0);
}

/** What all entries have cost together; what the competition itself says is for sandboxes alone. */
export function totalCost(competition: Pick<Competition, "cost" | "entries">): number {
  const agents = competition.entries.reduce((sum, entry) => sum + (entry.agent_cost ?? 0), 0);
  const sandboxes = competition.cost ?? competition.entries.reduce((sum, entry) => sum + (entry.cost ?? 0), 0);
  return sandboxes + agents;
}

/** The best first; those without a rank after them, by number. */
export const byRank = (a: Entry, b: Entry) =>
  (a.rank ?? Number.MAX_SAFE_INTEGER) - (b.rank ?? Number.MAX_SAFE_INTEGER) || a.number - b.number;

export const isOver = (competition: Competition) => ["decided", "failed", "cancelled"].includes(competition.state);

export function useCompetitions() {
  return useQuery({
    queryKey: ["forks", "list"],
    queryFn: () => take(api.GET("/api/v1/sandboxes/fork", { params: { query: { limit: 100 } } })),
  });
}

export function useCompetition(id: string) {
  return useQuery({
    queryKey: ["forks", "one", id],
    queryFn: () => take(api.GET("/api/v1/sandboxes/fork/{fork}", { params: { path: { fork: id } } })),
    // Events tell of states; what it has cost so far is told by nobody.
    refetchInterval: ({ state: { data } }) => (data === undefined || isOver(data) ? false : 10_000),
  });
}

export function useFreshForks() {
  const queries = useQueryClient();
  return () => Promise.all(["forks", "tasks"].map((name) => queries.invalidateQueries({ queryKey: [name] })));
}
