import { useMemo } from "react";
import { useQuery } from "@tanstack/react-query";
import { api, take } from "./client";

export function useAgents() {
  return useQuery({
    queryKey: ["agents"],
    queryFn: () => take(api.GET("/api/v1/agents", { params: { query: { limit: 200 } } })),
    staleTime: 60_000,
  });
}

/** The names of agents by id, as far as they are known. */
export function useAgentNames(): Map<string, string> {
  const { data } = useAgents();
  return useMemo(() => new Map(data?.items.map((agent) => [agent.id, agent.name])), [data]);
}
