import { useQuery } from "@tanstack/react-query";
import { api, take } from "./client";

/** The prices by which sandboxes are counted, and what they are in. */
export function usePrices() {
  return useQuery({ queryKey: ["prices"], queryFn: () => take(api.GET("/api/v1/prices")), staleTime: 600_000 }).data;
}
