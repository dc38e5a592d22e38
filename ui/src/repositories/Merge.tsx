// Merging a pull request, and what its checks say: on its own page and on that of its task.
import { useState, type ReactNode } from "react";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { CircleCheck, CircleDashed, CircleSlash, GitMerge, LoaderCircle, TriangleAlert } from "lucide-react";
import { toast } from "sonner";
import { api, take, type Schemas } from "../api/client";
import { may } from "../api/session";
import { Badge, type Tone } from "../ui/Badge";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Confirm } from "../ui/Dialog";
import { ErrorBox, Loading } from "../ui/feedback";
import { SelectField } from "../ui/fields";
import { plainText } from "../ui/format";
import { Card } from "../ui/layout";

type Pull = Schemas["Pull"];

export const PULL_TONES: Record<string, Tone> = {
  open: "ok",
  merged: "info",
  closed: "dim",
  success: "ok",
  failure: "bad",
  error: "bad",
  pending: "info",
};

/** GitHub tries a merge when it is asked, and tells of it a little later. */
const AGAIN_MS = 5000;
/** The base of a repository elsewhere moves without a word. */
const ELSEWHERE_MS = 60_000;
const MOST_NAMED = 8;

export function useMergeability(repository: string, pull: Pull | undefined) {
  return useQuery({
    queryKey: ["repositories", repository, "pull", String(pull?.number), "mergeability"],
    queryFn: () =>
      take(
        api.GET("/api/v1/repositories/{repository}/pulls/{number}/mergeability", {
          params: { path: { repository, number: pull?.number ?? 0 } },
        }),
      ),
    enabled: pull?.state === "open",
    refetchInterval: ({ state }) =>
      state.data?.state === "unknown" ? AGAIN_MS : pull?.web_url == null ? false : ELSEWHERE_MS,
    retry: 1,
  });
}

/** Whether a pull request can be merged, before anybody tries. `resolve` is the way out of a conflict. */
export function MergeBox({ repository, pull, resolve }: { repository: string; pull: Pull; resolve?: ReactNode }) {
  const { data, error } = useMergeability(repository, pull);
  if (pull.state !== "open") return null;
  if (error !== null && data === undefined) return <ErrorBox error={error} />;
  const base = plainText(pull.base);
  const behind = data?.behind ?? 0;
  const moved =
    behind === 0
      ? undefined
      : `${base} has ${behind === 1 ? "1 commit" : `${behind >= 1000 ? "1,000 or more" : behind} commits`} that this branch does not have.`;
  const line = (look: string, Icon: typeof CircleCheck, title: string, more?: ReactNode) => (
    <div
      role="status"
      aria-label="Mergeability"
      className={`flex flex-wrap items-start gap-3 rounded-lg border p-3 ${look}`}
    >
      <Icon aria-hidden className="mt-0.5 size-4 shrink-0" />
      <div className="min-w-0 flex-1 basis-64 space-y-1">
        <p className="font-medium">{title}</p>
        {more}
        {data !== undefined && data.state !== "conflict" && moved !== undefined && (
          <p className="text-dim">{moved} They do not conflict.</p>
        )}
        {data?.checks === "failure" && data.state !== "conflict" && (
          <p className="text-bad">Checks of the newest commit failed.</p>
        )}
        {data?.checks === "pending" && <p className="text-dim">Checks of the newest commit are running.</p>}
      </div>
      {data?.state === "conflict" && resolve}
    </div>
  );
  switch (data?.state) {
    case "clean":
      return data.checks === "failure"
        ? line("border-warn/40 bg-warn-soft text-ink", TriangleAlert, "It can be merged, but its checks failed")
        : line("border-ok/40 bg-ok-soft text-ink", CircleCheck, "It can be merged");
    case "conflict":
      return line(
        "border-bad/40 bg-bad-soft text-ink",
        TriangleAlert,
        `It conflicts with ${base}`,
        <>
          <p className="text-dim">Both changed the same lines since this branch began.</p>
          {data.paths.length > 0 && (
            <ul aria-label="Files in conflict" className="font-mono text-xs">
              {data.paths.slice(0, MOST_NAMED).map((path) => (
                <li key={path} className="break-all">
                  {plainText(path)}
                </li>
              ))}
              {data.paths.length > MOST_NAMED && <li>and {data.paths.length - MOST_NAMED} more</li>}
            </ul>
          )}
        </>,
      );
    case "blocked":
      return line(
        "border-warn/40 bg-warn-soft text-ink",
        CircleSlash,
        "It cannot be merged yet",
        data.why ? <p className="break-words text-dim">{plainText(data.why)}</p> : undefined,
      );
    case "closed":
      return null;
    case "unknown":
      return line("border-line bg-surface text-dim", CircleDashed, "GitHub is checking whether it can be merged");
    default:
      return line("border-line bg-surface text-dim", LoaderCircle, "Checking whether it can be merged");
  }
}

/** What an agent is told to do about a conflict. */
export function conflictPrompt(pull: Pick<Pull, "number" | "base" | "head">, paths: string[]): string {
  const files =
    paths.length === 0
      ? ""
      : `\n\nThe files in conflict:\n${paths.map((path) => `- \`${path.replaceAll("`", "'")}\``).join("\n")}`;
  return `Pull request #${pull.number} cannot be merged: \`${pull.base}\` has moved on and conflicts with this branch, \`${pull.head}\`.${files}

Merge the base into this branch with \`git merge origin/${pull.base}\`. Resolve each conflict so that what both sides meant stays, run the tests, and commit the merge. Do not rebase, and do not throw away either side.`;
}

export function MergeActions({ repository, pull }: { repository: string; pull: Pull }) {
  const queries = useQueryClient();
  const [method, setMethod] = useState("squash");
  const [merging, setMerging] = useState(false);
  const path = { repository, number: pull.number };
  const mergeable = useMergeability(repository, pull).data;
  const why =
    mergeable?.state === "conflict"
      ? `It conflicts with ${plainText(pull.base)}`
      : mergeable?.state === "blocked"
        ? plainText(mergeable.why ?? "It cannot be merged yet")
        : undefined;
  // What was looked at is what is merged: a head that moved on is refused.
  const body = { method, expected_head: pull.head_commit };
  if (pull.state !== "open") return null;
  return (
    <>
      <SelectField label="How to merge" hideLabel value={method} onChange={(event) => setMethod(event.target.value)}>
        <option value="squash">Squash</option>
        <option value="merge">Merge commit</option>
        <option value="rebase">Rebase</option>
      </SelectField>
      <Button
        tone="primary"
        disabled={!may("write")}
        why={why}
        onClick={() => setMerging(true)}
        icon={<GitMerge aria-hidden className="size-4" />}
      >
        Merge
      </Button>
      <CopyAs recipe={{ curl: curl("POST", `/api/v1/repositories/${repository}/pulls/${pull.number}/merge`, body) }} />
      <Confirm
        open={merging}
        onClose={() => setMerging(false)}
        title={`Merge #${pull.number} into ${plainText(pull.base)}?`}
        action="Merge"
        onConfirm={async () => {
          await take(api.POST("/api/v1/repositories/{repository}/pulls/{number}/merge", { params: { path }, body }));
          await Promise.all(
            [["repositories", repository], ["tasks"]].map((queryKey) => queries.invalidateQueries({ queryKey })),
          );
          toast.success("Merged");
        }}
      >
        {method === "squash"
          ? "As one commit."
          : method === "rebase"
            ? "Its commits, on top of the base."
            : "With a commit of two parents."}{" "}
        If the branch has changed since you looked, it is refused.
      </Confirm>
    </>
  );
}

/** What was said of a commit by those that check it; nothing where nobody did. */
export function Checks({ repository, commit }: { repository: string; commit: string | undefined }) {
  const { data, error, isPending } = useQuery({
    queryKey: ["repositories", repository, "statuses", commit],
    queryFn: () =>
      take(
        api.GET("/api/v1/repositories/{repository}/commits/{commit}/statuses", {
          params: { path: { repository, commit: commit ?? "" } },
        }),
      ),
    enabled: commit !== undefined,
  });
  if (commit === undefined) return null;
  if (data === undefined) {
    // A check that failed and one that could not be looked up must not look alike, nor like none.
    return (
      <Card title="Checks">
        {error !== null ? (
          <ErrorBox error={error} className="m-4" />
        ) : (
          isPending && <Loading what="Looking for checks" />
        )}
      </Card>
    );
  }
  if (data.statuses.length === 0) return null;
  return (
    <Card title="Checks" actions={<Badge tone={PULL_TONES[data.state] ?? "dim"}>{data.state}</Badge>}>
      <ul className="divide-y divide-line">
        {data.statuses.map((status) => (
          <li key={status.context} className="flex items-center gap-3 px-4 py-2">
            <Badge tone={PULL_TONES[status.state] ?? "dim"}>{status.state}</Badge>
            <span className="font-medium">{plainText(status.context)}</span>
            <span className="text-dim">{plainText(status.description)}</span>
          </li>
        ))}
      </ul>
    </Card>
  );
}
