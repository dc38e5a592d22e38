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
