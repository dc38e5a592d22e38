// What an agent has changed and not committed yet. It is looked at again every few seconds while this is open.
import { useMemo } from "react";
import { useQuery } from "@tanstack/react-query";
import { api, take, type Schemas } from "../api/client";
import { useSandbox } from "../api/sandboxes";
import { DiffView } from "../repositories/DiffView";
import { parsePatch } from "../repositories/patch";
import { Empty, Loaded } from "../ui/feedback";
import { Card } from "../ui/layout";

/** git has to look through all files, so not more often. */
const AGAIN_MS = 8000;

/** A patch without its list of files, as the diff of a pull request has it. */
function diffOf(patch: string, truncated: boolean): Schemas["Diff"] {
  const files = parsePatch(patch).map(({ path, hunks }) => {
    const lines = hunks.flatMap((hunk) => hunk.lines);
    const count = (kind: string) => lines.filter((line) => line.kind === kind).length;
    const [additions, deletions] = [count("added"), count("removed")];
    return { path, change: "modified", additions, deletions, binary: hunks.length === 0 };
  });
  const sum = (count: (file: (typeof files)[number]) => number) => files.reduce((all, file) => all + count(file), 0);
  return {
    files,
    patch,
    truncated,
    head_commit: "",
    additions: sum((file) => file.additions),
    deletions: sum((file) => file.deletions),
  };
}

function Files({ patch, truncated }: { patch: string; truncated: boolean }) {
  const diff = useMemo(() => diffOf(patch, truncated), [patch, truncated]);
  if (diff.files.length === 0)
    return (
      <Card>
        <Empty title="No changes yet">The agent has not changed any file since the last commit.</Empty>
      </Card>
    );
  return (
    <div className="space-y-3">
      <p role="status" className="text-dim">
        {diff.files.length === 1 ? "1 file" : `${diff.files.length} files`} changed since the last commit
        {truncated ? "; there is more than is shown" : ""}. The agent is still at work.
      </p>
      <DiffView diff={diff} />
    </div>
  );
}

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
      {({ patch, truncated }) => <Files patch={patch} truncated={truncated} />}
    </Loaded>
  );
}
