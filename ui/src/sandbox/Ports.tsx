// What listens inside, read from the kernel's own table, with links where this page can make them.
import { useQuery } from "@tanstack/react-query";
import { ExternalLink } from "lucide-react";
import { raw } from "../api/client";
import type { Sandbox } from "../api/sandboxes";
import { session } from "../api/session";
import { CopyAs } from "../ui/CopyAs";
import { Empty, Loaded } from "../ui/feedback";
import { Card } from "../ui/layout";
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

export function Ports({ sandbox }: { sandbox: Sandbox }) {
  const { id } = sandbox;
  const running = sandbox.state === "running";
  const query = useQuery({
    queryKey: ["ports", id],
    queryFn: () => ports(id),
    enabled: running,
    refetchInterval: 10_000,
  });
  return (
    <Card title="Ports" className="lg:col-span-2">
      {!running ? (
        <Empty title="Ports are open while it runs" />
      ) : (
        <Loaded query={query} what="Looking for open ports">
          {(open) =>
            open.length === 0 ? (
              <Empty title="No open ports">Start a server in the sandbox and its port appears here with a link.</Empty>
            ) : (
              <ul className="divide-y divide-line">
                {open.map((port) => {
                  const address = portAddress(id, port);
                  return (
                    <li key={port} className="flex items-center gap-3 px-4 py-1.5">
                      <span className="w-16 font-mono">{port}</span>
                      {address === undefined ? (
                        <span className="flex-1 text-dim">Reachable with headers; a domain would give it a link.</span>
                      ) : (
                        <a
                          href={address}
                          target="_blank"
                          rel="noopener noreferrer"
                          className="flex min-w-0 flex-1 items-center gap-1.5 text-accent underline"
                        >
                          <span className="truncate">{address}</span>
                          <ExternalLink aria-hidden className="size-3.5 shrink-0" />
                        </a>
                      )}
                      <CopyAs
                        recipe={{
                          python: `from e2b import Sandbox\nSandbox.connect("${id}").get_host(${port})`,
                          curl: `curl -sS -H "E2b-Sandbox-Id: ${id}" -H "E2b-Sandbox-Port: ${port}" "$COFFER_URL/"`,
                        }}
                      />
                    </li>
                  );
                })}
              </ul>
            )
          }
        </Loaded>
      )}
    </Card>
  );
}
