// What an agent has changed and not committed yet. It is looked at again every few seconds while this is open.
import { useQuery } from "@tanstack/react-query";
import { api, take } from "../api/client";
import { useSandbox } from "../api/sandboxes";
import { PatchLines } from "../repositories/DiffView";
import { parsePatch } from "../repositories/patch";
import { Empty, Loaded } from "../ui/feedback";
import { plainText } from "../ui/format";
import { Card } from "../ui/layout";

/** git has to look through all files, so not more often. */
const AGAIN_MS = 8000;

export function SoFar({ sandbox }: { sandbox: string }) {
  // A paused sandbox stays paused.
  const running = useSandbox(sandbox).data?.state === "running";
  const diff = useQuery({
    queryKey: ["sandbox-diff", sandbox],
    queryFn: () => take(api.GET("/api/v1/sandboxes/{id}/diff", { params: { path: { id: sandbox } } })),
    enabled: running,
    refetchInterval: AGAIN_MS,
    retry: false,
  });
  if (!running) return null;
  return (
    <Loaded query={diff} what="Looking for changes">
      {({ patch, truncated }) => {
        const files = parsePatch(patch);
        if (files.length === 0) {
          return (
            <Card>
              <Empty title="No changes yet">The agent has not changed any file since the last commit.</Empty>
            </Card>
          );
        }
        return (
          <div className="space-y-3">
            <p role="status" className="text-dim">
              {files.length === 1 ? "1 file" : `${files.length} files`} changed since the last commit
              {truncated ? "; there is more than is shown" : ""}. The agent is still at work.
            </p>
            {files.map((file) => (
              <Card key={file.path} title={<span className="font-mono text-sm break-all">{plainText(file.path)}</span>}>
                <PatchLines file={file} label={`Changes so far of ${file.path}`} />
              </Card>
            ))}
          </div>
        );
      }}
    </Loaded>
  );
}
