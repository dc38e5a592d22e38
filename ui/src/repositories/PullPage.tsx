// A pull request: what it changes, what was said of it, what checks say, and the button.
import { useState, type FormEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { Check, GitMerge, MessageSquare, X } from "lucide-react";
import { toast } from "sonner";
import { api, take } from "../api/client";
import { may } from "../api/session";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Confirm } from "../ui/Dialog";
import { Empty, ErrorBox, Loaded, Loading, toastError } from "../ui/feedback";
import { SelectField, TextArea } from "../ui/fields";
import { plainText } from "../ui/format";
import { Card, Page } from "../ui/layout";
import { Ago } from "../ui/time";
import { DiffView } from "./DiffView";
import { PULL_TONES } from "./Repository";

const paragraphs = (text: string) => text.split("\n").map(plainText).join("\n");

export function PullPage() {
  const { repository, number } = useParams({ from: "/shell/repositories/$repository/pulls/$number" });
  const queries = useQueryClient();
  const path = { repository, number: Number(number) };
  const key = ["repositories", repository, "pull", number];
  const fresh = () => queries.invalidateQueries({ queryKey: ["repositories", repository] });
  const query = useQuery({ queryKey: key, queryFn: () => take(api.GET("/api/v1/repositories/{repository}/pulls/{number}", { params: { path } })) });
  const diff = useQuery({ queryKey: [...key, "diff"], queryFn: () => take(api.GET("/api/v1/repositories/{repository}/pulls/{number}/diff", { params: { path } })) });
  const remarks = useQuery({
    queryKey: [...key, "remarks"],
    queryFn: () => take(api.GET("/api/v1/repositories/{repository}/pulls/{number}/line-comments", { params: { path, query: { limit: 200 } } })),
  });
  const comments = useQuery({
    queryKey: [...key, "comments"],
    queryFn: () => take(api.GET("/api/v1/repositories/{repository}/pulls/{number}/comments", { params: { path, query: { limit: 200 } } })),
  });
  const reviews = useQuery({
    queryKey: [...key, "reviews"],
    queryFn: () => take(api.GET("/api/v1/repositories/{repository}/pulls/{number}/reviews", { params: { path, query: { limit: 200 } } })),
  });
  const head = query.data?.head_commit;
  const statuses = useQuery({
    queryKey: [...key, "statuses", head],
    queryFn: () => take(api.GET("/api/v1/repositories/{repository}/commits/{commit}/statuses", { params: { path: { repository, commit: head ?? "" } } })),
    enabled: head !== undefined,
  });
  const [method, setMethod] = useState("squash");
  const [merging, setMerging] = useState(false);
  const [text, setText] = useState("");
  const say = useMutation({
    mutationFn: () => take(api.POST("/api/v1/repositories/{repository}/pulls/{number}/comments", { params: { path }, body: { body: text } })),
    onSuccess: () => {
      setText("");
      void fresh();
    },
    onError: toastError,
  });
  const review = useMutation({
    mutationFn: (verdict: string) =>
      take(api.POST("/api/v1/repositories/{repository}/pulls/{number}/reviews", { params: { path }, body: { verdict, body: text, commit: head } })),
    onSuccess: () => {
      setText("");
      void fresh();
    },
    onError: toastError,
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    say.mutate();
  };
  const pull = query.data;
  if (pull === undefined) return query.error === null ? <Loading /> : <ErrorBox error={query.error} className="m-5" />;
  const said = [
    ...(comments.data?.items.map((one) => ({ ...one, verdict: undefined })) ?? []),
    ...(reviews.data?.items ?? []),
  ].sort((a, b) => a.created_at.localeCompare(b.created_at));
  const open = pull.state === "open";
  const allowed = may("write");
  return (
    <Page
      title={
        <span className="flex flex-wrap items-center gap-2">
          <Link to="/repositories/$repository" params={{ repository }} className="text-dim hover:text-ink">
            #{pull.number}
          </Link>
          {plainText(pull.title)}
          <Badge tone={PULL_TONES[pull.state] ?? "dim"}>{pull.draft ? "draft" : pull.state}</Badge>
        </span>
      }
      actions={
        open && (
          <>
            <SelectField label="How to merge" hideLabel value={method} onChange={(event) => setMethod(event.target.value)}>
              <option value="squash">Squash</option>
              <option value="merge">Merge commit</option>
              <option value="rebase">Rebase</option>
            </SelectField>
            <Button tone="primary" disabled={!allowed} onClick={() => setMerging(true)} icon={<GitMerge aria-hidden className="size-4" />}>
              Merge
            </Button>
            <CopyAs recipe={{ curl: curl("POST", `/api/v1/repositories/${repository}/pulls/${number}/merge`, { method, expected_head: head }) }} />
          </>
        )
      }
    >
      <p className="text-dim">
        {plainText(pull.author)} wants <code className="font-mono text-ink">{plainText(pull.head)}</code> in{" "}
        <code className="font-mono text-ink">{plainText(pull.base)}</code>, changed <Ago at={pull.updated_at} />
      </p>
      {pull.body !== "" && (
        <Card>
          <p className="p-4 whitespace-pre-wrap">{paragraphs(pull.body)}</p>
        </Card>
      )}
      {(statuses.data?.statuses.length ?? 0) > 0 && (
        <Card title="Checks" actions={<Badge tone={PULL_TONES[statuses.data?.state ?? ""] ?? "dim"}>{statuses.data?.state}</Badge>}>
          <ul className="divide-y divide-line">
            {statuses.data?.statuses.map((status) => (
              <li key={status.context} className="flex items-center gap-3 px-4 py-2">
                <Badge tone={PULL_TONES[status.state] ?? "dim"}>{status.state}</Badge>
                <span className="font-medium">{plainText(status.context)}</span>
                <span className="text-dim">{plainText(status.description)}</span>
              </li>
            ))}
          </ul>
        </Card>
      )}
      <Loaded query={diff} what="Comparing">
        {(shown) => (
          <DiffView
            diff={shown}
            remarks={remarks.data?.items ?? []}
            onRemark={
              !allowed || !open
                ? undefined
                : async (remark) => {
                    const body = { verdict: "comment", body: "", commit: head, comments: [remark] };
                    try {
                      await take(api.POST("/api/v1/repositories/{repository}/pulls/{number}/reviews", { params: { path }, body }));
                      await fresh();
                    } catch (error) {
                      toastError(error);
                      throw error;
                    }
                  }
            }
          />
        )}
      </Loaded>
      <Card title="Said">
        {said.length === 0 ? (
          <Empty title="Nothing was said yet" />
        ) : (
          <ol className="divide-y divide-line">
            {said.map((one) => (
              <li key={one.id} className="px-4 py-3">
                <p className="flex flex-wrap items-center gap-2 text-dim">
                  <span className="font-medium text-ink">{plainText(one.author)}</span>
                  {one.verdict !== undefined && (
                    <Badge tone={one.verdict === "approve" ? "ok" : one.verdict === "request_changes" ? "bad" : "dim"}>{one.verdict.replaceAll("_", " ")}</Badge>
                  )}
                  <Ago at={one.created_at} />
                </p>
                {one.body !== "" && <p className="mt-1 whitespace-pre-wrap">{paragraphs(one.body)}</p>}
              </li>
            ))}
          </ol>
        )}
        {allowed && (
          <form onSubmit={submit} className="space-y-2 border-t border-line p-4">
            <TextArea label="Say something" value={text} onChange={(event) => setText(event.target.value)} className="font-sans" />
            <div className="flex flex-wrap justify-end gap-2">
              <Button type="submit" busy={say.isPending} disabled={text === ""} icon={<MessageSquare aria-hidden className="size-4" />}>
                Comment
              </Button>
              {open && (
                <>
                  <Button onClick={() => review.mutate("request_changes")} disabled={text === ""} icon={<X aria-hidden className="size-4" />}>
                    Ask for changes
                  </Button>
                  <Button onClick={() => review.mutate("approve")} icon={<Check aria-hidden className="size-4" />}>
                    Approve
                  </Button>
                </>
              )}
            </div>
          </form>
        )}
      </Card>
      <Confirm
        open={merging}
        onClose={() => setMerging(false)}
        title={`Merge #${pull.number} into ${plainText(pull.base)}?`}
        action="Merge it"
        onConfirm={async () => {
          // What was looked at is what is merged: a head that moved on is refused.
          const body = { method, expected_head: head };
          await take(api.POST("/api/v1/repositories/{repository}/pulls/{number}/merge", { params: { path }, body }));
          await fresh();
          toast.success("Merged");
        }}
      >
        {method === "squash" ? "As one commit." : method === "rebase" ? "Its commits, on top of the base." : "With a commit of two parents."} If the
        branch has changed since you looked, it is refused.
      </Confirm>
    </Page>
  );
}
