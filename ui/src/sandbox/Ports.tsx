// What listens inside, read from the kernel's own table, with links where this page can make them.
import { ExternalLink } from "lucide-react";
import type { Sandbox } from "../api/sandboxes";
import { CopyAs } from "../ui/CopyAs";
import { Empty, Loaded } from "../ui/feedback";
import { Card } from "../ui/layout";
import { portAddress, useOpenPorts } from "./openPorts";

export function Ports({ sandbox }: { sandbox: Sandbox }) {
  const { id } = sandbox;
  const running = sandbox.state === "running";
  const query = useOpenPorts(id, running);
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
