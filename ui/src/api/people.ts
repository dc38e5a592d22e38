// Names for the callers that the server records as `person:…`, `key:…`, `agent:…` and `operator:…`.
import { useCallback, useMemo } from "react";
import { useQuery } from "@tanstack/react-query";
import { useAgentNames } from "./agents";
import { api, take } from "./client";
import { useSession } from "./session";

/** Turns an actor on record into a name, also one who has left. */
export function useNameOf(): (actor: string | null | undefined) => string {
  const signedIn = useSession();
  const mine = signedIn?.actor;
  const agents = useAgentNames();
  const { data } = useQuery({
    queryKey: ["actors"],
    queryFn: () => take(api.GET("/api/v1/actors")),
    enabled: signedIn?.project !== undefined,
    staleTime: 60_000,
  });
  const names = useMemo(() => new Map(data?.items.map((one) => [one.actor, one.name])), [data]);
  return useCallback((actor) => nameOfActor(actor, { mine, agents, names }), [mine, agents, names]);
}

/** The server names the keys of sign-in links, and sessions, after the key that began them. */
const OF_KEY = "web UI of key ";
/** Links create links; longer chains than this are not followed. */
const MOST_LINKS = 8;
/** Names that the server gives to what has no name of a person. */
const NAMELESS = ["web UI", "sign-in link of a person"];

function nameOfKey(actor: string, names: Map<string, string>): string | undefined {
  let name = names.get(actor);
  for (let links = 0; name?.startsWith(OF_KEY) && links < MOST_LINKS; links += 1) {
    name = names.get(`key:${name.slice(OF_KEY.length)}`);
  }
  return name === undefined || name.startsWith(OF_KEY) || NAMELESS.includes(name) ? undefined : name;
}

export function nameOfActor(
  actor: string | null | undefined,
  known: { mine?: string; agents: Map<string, string>; names: Map<string, string> },
): string {
  const [, kind, id] = /^(key|agent|operator|person):(.+)$/.exec(actor ?? "") ?? [];
  if (kind === undefined || id === undefined) return actor === null || actor === undefined ? "Cofferdam" : actor;
  if (actor === known.mine) return "You";
  if (kind === "operator") return "an operator";
  if (kind === "agent") return known.agents.get(id) ?? "an agent";
  return nameOfKey(actor as string, known.names) ?? "a colleague";
}
