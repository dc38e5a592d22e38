// A link that editors on the reader's machine understand, and the line that makes their ssh know the host.

import { Copy } from "lucide-react";
import { Button } from "../ui/Button";
import { copyText } from "../ui/CopyAs";
import { EDITORS } from "./editor";

const FIRST = "coffer ssh-config --write";

export function OpenInEditor({ id }: { id: string }) {
  return (
    <p className="flex flex-wrap items-center gap-x-2 gap-y-1 border-t border-line px-4 py-3 text-sm">
      <span className="text-dim">Open in</span>
      {EDITORS.map(({ name, link }) => (
        <a key={name} href={link(id)} className="text-accent underline">
          {name}
        </a>
      ))}
      <span className="text-dim">
        by SSH; other programs use the host <code className="font-mono break-all">{id}.coffer</code>. Run this once
        before:
      </span>
      <code className="rounded bg-raised px-2 py-0.5 font-mono text-xs">{FIRST}</code>
      <Button
        tone="ghost"
        aria-label="Copy the line to run first"
        title="Copy"
        onClick={() => void copyText(FIRST, "the line to run first")}
        icon={<Copy aria-hidden className="size-4" />}
      />
    </p>
  );
}
