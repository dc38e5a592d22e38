// Names for the callers that the server records as `key:…`, `agent:…` and `operator:…`.
import { useCallback, useMemo } from "react";
import { useQuery } from "@tanstack/react-query";
import { useAgentNames } from "./agents";
import { api, take } from "./client";
import { may, useSession } from "./session";

/** Turns an actor on record into a name. Keys have names only for admins; for others they are people of the project. */
export function useNameOf(): (actor: string | null | undefined) => string {
  const mine = useSession()?.project?.keyId;
  const agents = useAgentNames();
  const { data } = useQuery({
    queryKey: ["keys"],
    queryFn: () => take(api.GET("/api/v1/keys")),
    enabled: may("admin"),
    staleTime: 60_000,
  });
  const keys = useMemo(() => new Map(data?.items.map((key) => [key.id, key.name])), [data]);
  return useCallback((actor) => nameOfActor(actor, { mine, agents, keys }), [mine, agents, keys]);
}

/** The server names the key of a sign-in link after the key that created the link. */
const OF_KEY = "web UI of key ";
/** Links create links; longer chains than this are not followed. */
const MOST_LINKS = 8;

function nameOfKey(id: string, keys: Map<string, string>): string | undefined {
  let name = keys.get(id);
  for (let links = 0; name?.startsWith(OF_KEY) && links < MOST_LINKS; links += 1) {
    name = keys.get(name.slice(OF_KEY.length));
  }
  return name?.startsWith(OF_KEY) ? undefined : name;
}

export function nameOfActor(
  actor: string | null | undefined,
  known: { mine?: string; agents: Map<string, string>; keys: Map<string, string> },
): string {
  const [, kind, id] = /^(key|agent|operator):(.+)$/.exec(actor ?? "") ?? [];
  if (kind === undefined || id === undefined) return actor === null || actor === undefined ? "Cofferdam" : actor;
  if (kind === "operator") return "an operator";
  if (kind === "agent") return known.agents.get(id) ?? "an agent";
  return id === known.mine ? "You" : (nameOfKey(id, known.keys) ?? "a colleague");
}
