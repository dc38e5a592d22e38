// What the pages ask about sandboxes.
import { useEffect, useMemo } from "react";
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { api, raw, take, type Schemas } from "./client";

export type Sandbox = Schemas["Sandbox"];

export type Shown = "live" | "ended" | "all";

const STATES: Record<Shown, string | undefined> = {
  live: "creating,running,paused",
  ended: "terminated,error",
  all: undefined,
};

/** More than this of live sandboxes are loaded by scrolling. */
const MOST_AT_ONCE = 2000;

export function useSandboxes(shown: Shown) {
  const query = useInfiniteQuery({
    queryKey: ["sandboxes", shown],
    queryFn: ({ pageParam }) =>
      take(
        api.GET("/api/v1/sandboxes", {
          params: { query: { limit: 200, order: "desc", state: STATES[shown], cursor: pageParam } },
        }),
      ),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
  });
  const sandboxes = useMemo(() => {
    const all = query.data?.pages.flatMap((page) => page.items) ?? [];
    // An event may have put one out of the filter that the page was loaded with.
    const states = STATES[shown]?.split(",");
    return states === undefined ? all : all.filter((sandbox) => states.includes(sandbox.state));
  }, [query.data, shown]);
  const { hasNextPage, isFetchingNextPage, fetchNextPage } = query;
  useEffect(() => {
    if (shown === "live" && hasNextPage && !isFetchingNextPage && sandboxes.length < MOST_AT_ONCE) void fetchNextPage();
  }, [shown, hasNextPage, isFetchingNextPage, fetchNextPage, sandboxes.length]);
  return { ...query, sandboxes };
}

export function useSandbox(id: string) {
  return useQuery({
    queryKey: ["sandbox", id],
    queryFn: () => take(api.GET("/api/v1/sandboxes/{id}", { params: { path: { id } } })),
  });
}

/** A sample of what a sandbox used, as E2B's routes show it. */
export interface Sample {
  timestampUnix: number;
  cpuCount: number;
  cpuUsedPct: number;
  memUsed: number;
  memTotal: number;
  diskUsed: number;
  diskTotal: number;
}

export function useSamples(id: string, enabled: boolean) {
  return useQuery({
    queryKey: ["samples", id],
    queryFn: async () => (await (await raw(`/sandboxes/${encodeURIComponent(id)}/metrics`)).json()) as Sample[],
    enabled,
    refetchInterval: 5000,
  });
}

export interface Trail {
  cpu: number[];
  memory: number[];
  memTotal: number;
}

const TRAIL = 24;
const trails = new Map<string, Trail>();

/** The last two minutes of those sandboxes, one question for all; it grows while somebody looks. */
export function useTrails(ids: string[]): Map<string, Trail> {
  const named = ids.slice(0, 100);
  const { data } = useQuery({
    queryKey: ["trails", named.join(",")],
    enabled: named.length > 0,
    refetchInterval: 5000,
    placeholderData: (before) => before,
    queryFn: async () => {
      const answer = await raw(`/sandboxes/metrics?sandbox_ids=${named.join(",")}`);
      const { sandboxes } = (await answer.json()) as { sandboxes: Record<string, Sample> };
      for (const [id, sample] of Object.entries(sandboxes)) {
        const trail = trails.get(id) ?? { cpu: [], memory: [], memTotal: sample.memTotal };
        trails.set(id, {
          cpu: [...trail.cpu, sample.cpuUsedPct].slice(-TRAIL),
          memory: [...trail.memory, sample.memUsed].slice(-TRAIL),
          memTotal: sample.memTotal,
        });
      }
      for (const id of trails.keys()) if (trails.size > 4000) trails.delete(id);
      return new Map(trails);
    },
  });
  return data ?? trails;
}
