// A pull request: what it changes, what was said of it, what checks say, and the button.
import { useMemo, useState, type FormEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { Check, MessageSquare, X } from "lucide-react";
import { api, take } from "../api/client";
import { useNameOf } from "../api/people";
import { may } from "../api/session";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { Empty, ErrorBox, Loaded, Loading, toastError } from "../ui/feedback";
import { TextArea } from "../ui/fields";
import { plainText } from "../ui/format";
import { Card, Page } from "../ui/layout";
import { InlineMarkdown, Markdown } from "../ui/Markdown";
import { Ago } from "../ui/time";
import { DiffView } from "./DiffView";
import { Checks, MergeActions, MergeBox, PULL_TONES } from "./Merge";
import type { NewRemark } from "./PatchLines";
import { ResolveConflict } from "./ResolveConflict";
import { useThreads } from "./threads";
import { useTaskOfPull } from "./taskOfPull";
import { useRepositories } from "./Repositories";

export function PullPage() {
  const { repository, number } = useParams({ from: "/shell/repositories/$repository/pulls/$number" });
  const queries = useQueryClient();
  const path = { repository, number: Number(number) };
  const key = ["repositories", repository, "pull", number];
  const fresh = () => queries.invalidateQueries({ queryKey: ["repositories", repository] });
  const query = useQuery({
    queryKey: key,
    queryFn: () => take(api.GET("/api/v1/repositories/{repository}/pulls/{number}", { params: { path } })),
  });
  const diff = useQuery({
    queryKey: [...key, "diff"],
    queryFn: () => take(api.GET("/api/v1/repositories/{repository}/pulls/{number}/diff", { params: { path } })),
  });
  const remarks = useQuery({
    queryKey: [...key, "remarks"],
    queryFn: () =>
      take(
        api.GET("/api/v1/repositories/{repository}/pulls/{number}/line-comments", {
          params: { path, query: { limit: 200 } },
        }),
      ),
  });
  const comments = useQuery({
    queryKey: [...key, "comments"],
    queryFn: () =>
      take(
        api.GET("/api/v1/repositories/{repository}/pulls/{number}/comments", {
          params: { path, query: { limit: 200 } },
        }),
      ),
  });
  const reviews = useQuery({
    queryKey: [...key, "reviews"],
    queryFn: () =>
      take(
        api.GET("/api/v1/repositories/{repository}/pulls/{number}/reviews", {
          params: { path, query: { limit: 200 } },
        }),
      ),
  });
  const head = query.data?.head_commit;
  const [text, setText] = useState("");
  const say = useMutation({
    mutationFn: () =>
      take(
        api.POST("/api/v1/repositories/{repository}/pulls/{number}/comments", {
          params: { path },
          body: { body: text },
        }),
      ),
    onSuccess: () => {
      setText("");
      void fresh();
    },
    onError: toastError,
  });
  const review = useMutation({
    mutationFn: (verdict: string) =>
      take(
        api.POST("/api/v1/repositories/{repository}/pulls/{number}/reviews", {
          params: { path },
          body: { verdict, body: text, commit: head },
        }),
      ),
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
  const nameOf = useNameOf();
  const all = useRepositories();
  const repositoryName = all.data?.items.find((one) => one.id === repository)?.name ?? repository;
  const pull = query.data;
  const task = useTaskOfPull(repository, pull);
  const threads = useThreads(repository, pull);
  const source = useMemo(
    () => (diff.data === undefined ? undefined : { repository, commit: diff.data.head_commit }),
    [repository, diff.data],
  );
  if (pull === undefined) return query.error === null ? <Loading /> : <ErrorBox error={query.error} className="m-5" />;
  const said = [
    ...(comments.data?.items.map((one) => ({ ...one, verdict: undefined })) ?? []),
    ...(reviews.data?.items ?? []),
  ].sort((a, b) => a.created_at.localeCompare(b.created_at));
  const sendReview = async (comments: NewRemark[]) => {
    const body = { verdict: "comment", body: "", commit: head, comments };
    try {
      await take(api.POST("/api/v1/repositories/{repository}/pulls/{number}/reviews", { params: { path }, body }));
      await fresh();
    } catch (error) {
      toastError(error);
      throw error;
    }
  };
  const open = pull.state === "open";
  const allowed = may("write");
  return (
    <Page
      name={`#${pull.number} ${plainText(pull.title)}`}
      title={
        <span className="flex flex-wrap items-center gap-2">
          <Link to="/repositories/$repository" params={{ repository }} className="text-dim hover:text-ink">
            {plainText(repositoryName)}
          </Link>
          <span aria-hidden className="text-dim">
            /
          </span>
          <span className="text-dim">#{pull.number}</span>
          <span>
            <InlineMarkdown text={pull.title} />
          </span>
          <Badge tone={PULL_TONES[pull.state] ?? "dim"}>{pull.draft ? "draft" : pull.state}</Badge>
        </span>
      }
      actions={<MergeActions repository={repository} pull={pull} />}
    >
      <p className="text-dim">
        Opened by {plainText(nameOf(pull.author))} to merge{" "}
        <code className="font-mono text-ink">{plainText(pull.head)}</code> into{" "}
        <code className="font-mono text-ink">{plainText(pull.base)}</code>, changed <Ago at={pull.updated_at} />
        {task !== undefined && (
          <>
            , for the task{" "}
            <Link to="/tasks/$task" params={{ task: task.id }} className="text-accent underline">
              {plainText(task.title)}
            </Link>
          </>
        )}
      </p>
      {pull.body !== "" && (
        <Card>
          <Markdown text={pull.body} className="p-4" />
        </Card>
      )}
      <MergeBox
        repository={repository}
        pull={pull}
        resolve={
          task && (
            <ResolveConflict
              task={task.id}
              repository={repository}
              pull={pull}
              working={task.state === "in_progress"}
            />
          )
        }
      />
      <Checks repository={repository} commit={head} />
      <Loaded query={diff} what="Comparing">
        {(shown) => (
          <DiffView
            diff={shown}
            remarks={remarks.data?.items}
            threads={threads}
            source={source}
            onRemark={allowed && open ? (remark) => sendReview([remark]) : undefined}
            batch={
              allowed && open
                ? [
                    {
                      label: (count) => (count === 1 ? "Send 1 comment" : `Send ${count} comments`),
                      send: (drafts) => sendReview(drafts.map(({ remark }) => remark)),
                      primary: true,
                    },
                  ]
                : undefined
            }
          />
        )}
      </Loaded>
      <Card title="Comments">
        {said.length === 0 ? (
          <Empty title="No comments yet" />
        ) : (
          <ol className="divide-y divide-line">
            {said.map((one) => (
              <li key={one.id} className="px-4 py-3">
                <p className="flex flex-wrap items-center gap-2 text-dim">
                  <span className="font-medium text-ink">{plainText(nameOf(one.author))}</span>
                  {one.verdict !== undefined && (
                    <Badge tone={one.verdict === "approve" ? "ok" : one.verdict === "request_changes" ? "bad" : "dim"}>
                      {one.verdict.replaceAll("_", " ")}
                    </Badge>
                  )}
                  <Ago at={one.created_at} />
                </p>
                {one.body !== "" && <Markdown text={one.body} className="mt-1" />}
              </li>
            ))}
          </ol>
        )}
        {allowed && (
          <form onSubmit={submit} className="space-y-2 border-t border-line p-4">
            <TextArea
              label="Comment"
              value={text}
              onChange={(event) => setText(event.target.value)}
              className="font-sans"
            />
            <div className="flex flex-wrap justify-end gap-2">
              <Button
                type="submit"
                busy={say.isPending}
                disabled={text === ""}
                icon={<MessageSquare aria-hidden className="size-4" />}
              >
                Comment
              </Button>
              {open && (
                <>
                  <Button
                    onClick={() => review.mutate("request_changes")}
                    disabled={text === ""}
                    icon={<X aria-hidden className="size-4" />}
                  >
                    Request changes
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
    </Page>
  );
}
