// Which ports listen inside a sandbox, and where a browser reaches them.
import { useQuery } from "@tanstack/react-query";
import { raw } from "../api/client";
import { session } from "../api/session";
import { listening } from "./listening";

/** Where a browser reaches a port, if it can: by the server's domain, or on this machine by a name of localhost. */
export function portAddress(id: string, port: number): string | undefined {
  const domain = session()?.project?.domain;
  if (domain !== undefined) return `${location.protocol}//${port}-${id}.${domain}/`;
  const local = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  const ours = location.port === "" ? "" : `:${location.port}`;
  return local ? `http://${port}-${id}.localhost${ours}/` : undefined;
}

/** agentd, and the ways out to names and to the net: ours, not the sandbox's work. */
const OWN = [49983, 64053, 64443];

async function ports(id: string): Promise<number[]> {
  const table = async (name: string) => {
    const answer = await raw(`/api/v1/sandboxes/${encodeURIComponent(id)}/files/proc/net/${name}?watch=true`);
    return listening(await answer.text());
  };
  const found = await Promise.all([table("tcp"), table("tcp6")]);
  return [...new Set(found.flat())].filter((port) => !OWN.includes(port)).sort((a, b) => a - b);
}

/** The ports that listen now. Looking does not count as activity. */
export function useOpenPorts(id: string, running: boolean) {
  return useQuery({ queryKey: ["ports", id], queryFn: () => ports(id), enabled: running, refetchInterval: 10_000 });
}
