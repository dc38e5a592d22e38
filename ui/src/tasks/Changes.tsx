// What the attempts at a task changed: its pull request with checks and the button, and the diff, whose comments go to the agent.
import { useMemo } from "react";
import { useQuery } from "@tanstack/react-query";
import { toast } from "sonner";
import { api, take } from "../api/client";
import { may } from "../api/session";
import { DiffView, type NewRemark } from "../repositories/DiffView";
import { Checks, MergeActions, PULL_TONES } from "../repositories/Merge";
import { Badge } from "../ui/Badge";
import { Loaded, toastError } from "../ui/feedback";
import { plainText } from "../ui/format";
import { Card } from "../ui/layout";
import { Prose } from "../ui/Prose";
import { ownPull, PullLink } from "../work/PullLink";
import { useMessages } from "./Messages";
import { toMessage, toRemark } from "./remarks";
import { useFreshTasks, type Task } from "./tasks";

/** What this page says of a task already is left out of the words of its pull request: they are for forges. */
const SAID_HERE = /^\s*\|\s*(Task|Agent|Commit)\s*\|/;
const withoutIds = (body: string) =>
  body
    .split("\n")
    .filter((line) => !SAID_HERE.test(line))
    .join("\n");

/** The pull request of a task: by its address, or by the branch of its attempts. */
function usePull(task: Task) {
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

export function Changes({ task }: { task: Task }) {
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
  if (pull === undefined) {
    return task.pull_url ? (
      <Card title="Pull request">
        <p className="px-4 py-3">
          <PullLink url={task.pull_url} />
        </p>
      </Card>
    ) : null;
  }
  // A comment here is for the agent: its next turn.
  const toAgent = async (remark: NewRemark, text: string) => {
    try {
      await take(
        api.POST("/api/v1/tasks/{task}/messages", {
          params: { path: { task: task.id } },
          body: toMessage(remark, text),
        }),
      );
      toast.success("The agent will read it");
      await fresh();
    } catch (error) {
      toastError(error);
      throw error;
    }
  };
  return (
    <>
      <Card
        title={
          <span className="flex flex-wrap items-center gap-2">
            <PullLink url={`/repositories/${encodeURIComponent(repository)}/pulls/${pull.number}`} />
            <Badge tone={PULL_TONES[pull.state] ?? "dim"}>{pull.draft ? "draft" : pull.state}</Badge>
          </span>
        }
        actions={
          <div className="flex flex-wrap items-center gap-2">
            <MergeActions repository={repository} pull={pull} />
          </div>
        }
      >
        <p className="px-4 pt-3 font-medium">{plainText(pull.title)}</p>
        <Prose text={withoutIds(pull.body.slice(0, 4000))} className="px-4 pt-1 pb-3" />
      </Card>
      <Checks repository={repository} commit={pull.head_commit} />
      <Loaded query={diff} what="Comparing">
        {(shown) => <DiffView diff={shown} remarks={remarks} onRemark={may("write") ? toAgent : undefined} />}
      </Loaded>
    </>
  );
}
