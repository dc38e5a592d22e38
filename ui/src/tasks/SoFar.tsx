// What an agent has changed and not yet committed. It is asked for by a click: git has to look through all of it.
import { useMutation } from "@tanstack/react-query";
import { FileDiff } from "lucide-react";
import { api, take } from "../api/client";
import { useSandbox } from "../api/sandboxes";
import { PatchLines } from "../repositories/DiffView";
import { parsePatch } from "../repositories/patch";
import { Button } from "../ui/Button";
import { ErrorBox } from "../ui/feedback";
import { plainText } from "../ui/format";

export function SoFar({ sandbox }: { sandbox: string }) {
  const diff = useMutation({
    mutationFn: () => take(api.GET("/api/v1/sandboxes/{id}/diff", { params: { path: { id: sandbox } } })),
  });
  // One that is paused stays so.
  if (useSandbox(sandbox).data?.state !== "running") return null;
  const files = diff.data === undefined ? [] : parsePatch(diff.data.patch);
  return (
    <div className="border-t border-line">
      <div className="flex flex-wrap items-center justify-between gap-2 px-4 py-2">
        <p role="status" className="text-dim">
          {diff.data === undefined
            ? ""
            : files.length === 0
              ? "Nothing differs from the last commit."
              : `${files.length === 1 ? "1 file differs" : `${files.length} files differ`} from the last commit${diff.data.truncated ? "; there is more than is shown" : ""}.`}
        </p>
        <Button busy={diff.isPending} onClick={() => diff.mutate()} icon={<FileDiff aria-hidden className="size-4" />}>
          {diff.data === undefined ? "What it has changed so far" : "Look again"}
        </Button>
      </div>
      {diff.error !== null && <ErrorBox error={diff.error} className="mx-4 mb-4" />}
      {files.map((file) => (
        <div key={file.path} className="border-t border-line">
          <p className="px-4 py-1.5 font-mono text-xs break-all">{plainText(file.path)}</p>
          <PatchLines file={file} label={`So far of ${file.path}`} />
        </div>
      ))}
    </div>
  );
}
