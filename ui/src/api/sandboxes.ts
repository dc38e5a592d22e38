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

function belongs(shown: Shown, state: string): boolean {
  return STATES[shown]?.split(",").includes(state) ?? true;
}

export type SandboxPages = { pages: { items: Sandbox[]; next?: string | null }[]; pageParams: unknown[] };

/**
 * A list, newest first, with what became of one sandbox: in its place if it is there, and put in where it belongs now.
 * One that does not belong any more stays, for those who show the list to leave out.
 */
export function placed(list: SandboxPages, shown: Shown, sandbox: Sandbox): SandboxPages {
  const known = list.pages.some((page) => page.items.some((item) => item.id === sandbox.id));
  if (known) {
    const replaced = (items: Sandbox[]) => items.map((item) => (item.id === sandbox.id ? sandbox : item));
    return { ...list, pages: list.pages.map((page) => ({ ...page, items: replaced(page.items) })) };
  }
  if (!belongs(shown, sandbox.state)) return list;
  const made = Date.parse(sandbox.created_at);
  const older = (item: Sandbox) => Date.parse(item.created_at) < made;
  const found = list.pages.findIndex((page) => page.items.some(older));
  // Older than all: at the end, if that is loaded.
  if (found === -1 && (list.pages.length === 0 || list.pages.at(-1)?.next)) return list;
  const at = found === -1 ? list.pages.length - 1 : found;
  const put = (items: Sandbox[]) => {
    const before = items.findIndex(older);
    const place = before === -1 ? items.length : before;
    return [...items.slice(0, place), sandbox, ...items.slice(place)];
  };
  return {
    ...list,
    pages: list.pages.map((page, index) => (index === at ? { ...page, items: put(page.items) } : page)),
  };
}

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
    return all.filter((sandbox) => belongs(shown, sandbox.state));
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
    enabled: id !== "",
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
