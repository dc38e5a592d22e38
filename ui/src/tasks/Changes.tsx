// What the attempts at a task changed: its pull request with checks and the button, and the diff, whose comments go to the agent.
import { useMemo } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { toast } from "sonner";
import { api, take } from "../api/client";
import { may } from "../api/session";
import { DiffView } from "../repositories/DiffView";
import { MergeActions, MergeBox, PULL_TONES } from "../repositories/Merge";
import type { DraftRemark, NewRemark } from "../repositories/PatchLines";
import { ResolveConflict } from "../repositories/ResolveConflict";
import { useThreads } from "../repositories/threads";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { Empty, Loaded, toastError } from "../ui/feedback";
import { plainText } from "../ui/format";
import { Card } from "../ui/layout";
import { InlineMarkdown, Markdown } from "../ui/Markdown";
import { ownPull, PullLink } from "../work/PullLink";
import type { Attempt } from "./AttemptCard";
import { useMessages } from "./Messages";
import { toMessage, toRemark } from "./remarks";
import { SoFar } from "./SoFar";
import { useFreshTasks, type Task } from "./tasks";

/** What this page says of a task already is left out of the words of its pull request: they are for forges. */
const SAID_HERE = /^\s*\|\s*(Task|Agent|Commit)\s*\|/;
const withoutIds = (body: string) =>
  body
    .split("\n")
    .filter((line) => !SAID_HERE.test(line))
    .join("\n");

/** The pull request of a task: by its address, or by the branch of its attempts. */
export function usePull(task: Task) {
  const own = task.pull_url ? ownPull(task.pull_url) : undefined;
  // A repository of this server's is named by its name; what was before a slash says where it is.
  const repository = own?.repository ?? task.repository?.split("/").at(-1) ?? "";
  const named = useQuery({
    queryKey: ["repositories", repository, "pull", own?.number],
    queryFn: () =>
      take(
        api.GET("/api/v1/repositories/{repository}/pulls/{number}", {
          params: { path: { repository, number: Number(own?.number) } },
        }),
      ),
    enabled: own !== undefined,
    retry: false,
  });
  const found = useQuery({
    queryKey: ["repositories", repository, "of-branch", task.branch],
    queryFn: () =>
      take(
        api.GET("/api/v1/repositories/{repository}/pulls", {
          params: { path: { repository }, query: { head: task.branch ?? "" } },
        }),
      ),
    enabled: own === undefined && repository !== "" && Boolean(task.branch),
    retry: false,
  });
  return { repository, pull: named.data ?? found.data?.items[0] };
}

/** The buttons of a task's pull request, for the head of its page. */
export function PullActions({ task }: { task: Task }) {
  const { repository, pull } = usePull(task);
  return pull === undefined ? null : <MergeActions repository={repository} pull={pull} />;
}

/** What there is to see before a pull request exists: the sandbox's changes, or the branch that a failed attempt pushed. */
function WithoutPull({ task, attempt, repository }: { task: Task; attempt: Attempt | undefined; repository: string }) {
  const queries = useQueryClient();
  const open = useMutation({
    mutationFn: () =>
      take(
        api.POST("/api/v1/repositories/{repository}/pulls", {
          params: { path: { repository } },
          body: { head: task.branch ?? "", title: task.title.slice(0, 256), draft: true },
        }),
      ),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["repositories", repository] }),
    onError: toastError,
  });
  if (task.pull_url) {
    return (
      <Card title="Pull request">
        <p className="px-4 py-3">
          <PullLink url={task.pull_url} />
        </p>
      </Card>
    );
  }
  const live = attempt !== undefined && !attempt.ended_at && attempt.sandbox_id;
  return (
    <>
      {live && <SoFar sandbox={live} />}
      {!live && task.branch && task.commit ? (
        <Card title="Work without a pull request">
          <div className="flex flex-wrap items-center justify-between gap-3 p-4">
            <p className="min-w-0 flex-1 basis-64">
              The attempt pushed its work to <code className="font-mono text-xs">{plainText(task.branch)}</code> and
              opened no pull request. Open a draft to see the changes and comment on them.
            </p>
            <Button tone="primary" disabled={!may("write")} busy={open.isPending} onClick={() => open.mutate()}>
              Open a draft pull request
            </Button>
          </div>
        </Card>
      ) : (
        !live && (
          <Card>
            <Empty title="No changes yet">Start the task; its changes show here while the agent works.</Empty>
          </Card>
        )
      )}
    </>
  );
}

export function Changes({ task, attempt }: { task: Task; attempt: Attempt | undefined }) {
  const { repository, pull } = usePull(task);
  const diff = useQuery({
    // Another commit is another diff.
    queryKey: ["repositories", repository, "pull", pull?.number, "diff", pull?.head_commit],
    queryFn: () =>
      take(
        api.GET("/api/v1/repositories/{repository}/pulls/{number}/diff", {
          params: { path: { repository, number: pull?.number ?? 0 } },
        }),
      ),
    enabled: pull !== undefined,
  });
  const reviewed = useQuery({
    queryKey: ["repositories", repository, "pull", pull?.number, "remarks"],
    queryFn: () =>
      take(
        api.GET("/api/v1/repositories/{repository}/pulls/{number}/line-comments", {
          params: { path: { repository, number: pull?.number ?? 0 }, query: { limit: 200 } },
        }),
      ),
    enabled: pull !== undefined,
  });
  const said = useMessages(task.id);
  const remarks = useMemo(() => {
    const waiting = (said.data?.items ?? []).map(toRemark).filter((one) => one !== undefined);
    return [...(reviewed.data?.items ?? []), ...waiting];
  }, [reviewed.data, said.data]);
  const fresh = useFreshTasks();
  const threads = useThreads(repository, pull);
  const source = useMemo(
    () => (diff.data === undefined ? undefined : { repository, commit: diff.data.head_commit }),
    [repository, diff.data],
  );
  if (pull === undefined) return <WithoutPull task={task} attempt={attempt} repository={repository} />;
  const working = attempt !== undefined && !attempt.ended_at;
  const startAgain = () =>
    take(api.POST("/api/v1/tasks/{task}/start", { params: { path: { task: task.id } }, body: {} })).then(
      fresh,
      toastError,
    );
  // A comment here is for the agent: its next turn, or its next attempt.
  const toAgent = async (remark: NewRemark, text: string) => {
    try {
      await take(
        api.POST("/api/v1/tasks/{task}/messages", {
          params: { path: { task: task.id } },
          body: toMessage(remark, text),
        }),
      );
      toast.success(working ? "Sent; the agent reads it after its current turn" : "Saved for the next attempt", {
        ...(working ? {} : { action: { label: "Start it", onClick: () => void startAgain() } }),
      });
      await fresh();
    } catch (error) {
      toastError(error);
      throw error;
    }
  };
  const sendAll = async (drafts: DraftRemark[], start: boolean) => {
    try {
      for (const [at, { remark, text }] of drafts.entries()) {
        const body = { ...toMessage(remark, text), start: start && at === drafts.length - 1 };
        await take(api.POST("/api/v1/tasks/{task}/messages", { params: { path: { task: task.id } }, body }));
      }
      toast.success(start ? "Sent; another attempt starts" : working ? "Sent" : "Saved for the next attempt");
      await fresh();
    } catch (error) {
      toastError(error);
      throw error;
    }
  };
  const counted = (count: number) => (count === 1 ? "1 comment" : `${count} comments`);
  const ways = [
    { label: (count: number) => `Send ${counted(count)}`, send: (drafts: DraftRemark[]) => sendAll(drafts, false) },
    ...(working
      ? []
      : [
          {
            label: (count: number) => `Send ${counted(count)} and start again`,
            send: (drafts: DraftRemark[]) => sendAll(drafts, true),
            primary: true,
          },
        ]),
  ];
  return (
    <>
      <Card
        title={
          <span className="flex flex-wrap items-center gap-2">
            <PullLink url={`/repositories/${encodeURIComponent(repository)}/pulls/${pull.number}`} />
            <Badge tone={PULL_TONES[pull.state] ?? "dim"}>{pull.draft ? "draft" : pull.state}</Badge>
          </span>
        }
      >
        <p className="px-4 pt-3 font-medium">
          <InlineMarkdown text={pull.title} />
        </p>
        <Markdown text={withoutIds(pull.body.slice(0, 4000))} className="px-4 pt-1 pb-3" />
      </Card>
      <MergeBox
        repository={repository}
        pull={pull}
        resolve={<ResolveConflict task={task.id} repository={repository} pull={pull} working={working} />}
      />
      <Loaded query={diff} what="Comparing">
        {(shown) => (
          <DiffView
            diff={shown}
            remarks={remarks}
            threads={threads}
            source={source}
            onRemark={may("write") ? toAgent : undefined}
            batch={may("write") ? ways : undefined}
          />
        )}
      </Loaded>
    </>
  );
}
