// Merging a pull request, and what its checks say: on its own page and on that of its task.
import { useState } from "react";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { GitMerge } from "lucide-react";
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

export function MergeActions({ repository, pull }: { repository: string; pull: Pull }) {
  const queries = useQueryClient();
  const [method, setMethod] = useState("squash");
  const [merging, setMerging] = useState(false);
  const path = { repository, number: pull.number };
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
