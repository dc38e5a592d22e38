// What the agent's sandbox serves: links to its open ports, as on the page of the sandbox.
import { ExternalLink, Radio } from "lucide-react";
import { useSandbox } from "../api/sandboxes";
import { portAddress, useOpenPorts } from "../sandbox/openPorts";
import type { Attempt } from "./AttemptCard";

const MOST = 8;

function Open({ id }: { id: string }) {
  const ports = (useOpenPorts(id, true).data ?? []).slice(0, MOST);
  if (ports.length === 0) return null;
  return (
    <p className="mt-1.5 flex flex-wrap items-center gap-x-3 gap-y-1 text-sm" role="group" aria-label="Previews">
      <span className="inline-flex items-center gap-1 text-dim">
        <Radio aria-hidden className="size-3.5" /> Preview
      </span>
      {ports.map((port) => {
        const address = portAddress(id, port);
        return address === undefined ? (
          <span key={port} title="Reachable with headers; a domain would give it a link" className="font-mono text-dim">
            {port}
          </span>
        ) : (
          <a
            key={port}
            href={address}
            target="_blank"
            rel="noopener noreferrer"
            aria-label={`Preview of port ${port}`}
            className="inline-flex items-center gap-1 font-mono text-accent underline"
          >
            {port} <ExternalLink aria-hidden className="size-3.5" />
          </a>
        );
      })}
    </p>
  );
}

export function Previews({ attempt }: { attempt: Attempt | undefined }) {
  const id = attempt?.sandbox_id ?? undefined;
  const running = useSandbox(id ?? "").data?.state === "running";
  return id !== undefined && running ? <Open id={id} /> : null;
}
