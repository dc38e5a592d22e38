// What the page of a task and its drawer on the board have in common.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { DropdownMenu } from "radix-ui";
import { Ellipsis, GitFork, Hand, Pencil, Play, Square, TriangleAlert } from "lucide-react";
import { toast } from "sonner";
import { useAgentNames } from "../api/agents";
import { api, take } from "../api/client";
import { usePrices } from "../api/prices";
import { may } from "../api/session";
import { CompeteForTask } from "../forks/NewCompetition";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { Confirm } from "../ui/Dialog";
import { Loaded, toastError } from "../ui/feedback";
import { SelectField } from "../ui/fields";
import { moment, money, plainText } from "../ui/format";
import { Card, Facts } from "../ui/layout";
import { Markdown } from "../ui/Markdown";
import { Ago } from "../ui/time";
import { PullLink } from "../work/PullLink";
import { needsOf } from "./activity";
import { isAsking } from "./asking";
import { AttemptQuestion } from "./AttemptQuestion";
import { EditTask } from "./NewTask";
import { StartDialog } from "./StartDialog";
import { COLUMNS, PRIORITY_TONES, useFreshTasks, useTask, type Task } from "./tasks";

const ITEM = "rounded-md px-2 py-1.5 outline-none data-[highlighted]:bg-raised";

export function NeedsAttention({ task }: { task: Task }) {
  const fresh = useFreshTasks();
  const seen = useMutation({
    mutationFn: () =>
      take(
        api.PATCH("/api/v1/tasks/{task}", { params: { path: { task: task.id } }, body: { needs_attention: false } }),
      ),
    onSuccess: fresh,
    onError: toastError,
  });
  if (!task.needs_attention) return null;
  if (isAsking(task)) return <AttemptQuestion task={task} />;
  return (
    <div role="status" className="flex gap-3 rounded-lg border border-warn/40 bg-warn-soft p-4">
      <TriangleAlert aria-hidden className="mt-0.5 size-4 shrink-0 text-warn" />
      <p className="min-w-0 flex-1 break-words">
        <span className="font-medium text-warn">{needsOf(task.needs_attention.code)}.</span>{" "}
        {plainText(task.needs_attention.message)}
      </p>
      {may("write") && (
        <Button busy={seen.isPending} onClick={() => seen.mutate()}>
          Dismiss
        </Button>
      )}
    </div>
  );
}

export function Wanted({ task }: { task: Task }) {
  const names = useAgentNames();
  const currency = usePrices()?.currency ?? "USD";
  return (
    <Card title="Description">
      {task.description !== "" && <Markdown text={task.description} className="border-b border-line p-4" />}
      <Facts
        facts={[
          [
            "Priority",
            <Badge key="priority" tone={PRIORITY_TONES[task.priority]}>
              {task.priority}
            </Badge>,
          ],
          ["Labels", task.labels.map(plainText).join(", ") || "–"],
          ["Repository", plainText(task.repository ?? "") || "none"],
          ...(task.issue == null
            ? []
            : [
                [
                  "Issue",
                  <PullLink key="issue" url={task.issue.url}>
                    {`#${task.issue.number} by ${plainText(task.issue.author)}`}
                  </PullLink>,
                ] as [string, React.ReactNode],
              ]),
          ["From branch", plainText(task.base_branch ?? "") || "the default"],
          ["Agent", plainText(task.agent_id ? (names.get(task.agent_id) ?? task.agent_id) : "none")],
          ["Model", plainText(task.model ?? "") || "the agent's default"],
          [
            "Check",
            task.check_command ? (
              <code key="check" className="font-mono text-xs">
                {plainText(task.check_command)}
              </code>
            ) : (
              "none"
            ),
          ],
          ["Budget", task.budget === null || task.budget === undefined ? "none" : money(task.budget, currency)],
          ["After a review", task.on_review === "start" ? "start the next attempt" : "wait for a person"],
          ["Created", <Ago key="made" at={task.created_at} />],
        ]}
      />
    </Card>
  );
}

export function History({ id }: { id: string }) {
  const history = useQuery({
    queryKey: ["tasks", "history", id],
    queryFn: () => take(api.GET("/api/v1/tasks/{task}/history", { params: { path: { task: id } } })),
  });
  return (
    <Card title="Activity">
      <Loaded query={history}>
        {(moves) => (
          <ol className="divide-y divide-line">
            {[...moves].reverse().map((step) => (
              <li key={`${step.at}${step.to}`} className="flex flex-wrap gap-x-3 px-4 py-2">
                <span className="font-medium">
                  {COLUMNS.find((column) => column.state === step.to)?.name ?? step.to}
                </span>
                <span className="min-w-0 flex-1 text-dim">{plainText(step.reason)}</span>
                <time dateTime={step.at} title={moment(step.at)} className="text-dim">
                  <Ago at={step.at} />
                </time>
              </li>
            ))}
          </ol>
        )}
      </Loaded>
    </Card>
  );
}

/** A task with its attempts, newest first, and what can be done about it. */
export function useTaskWork(id: string) {
  const queries = useQueryClient();
  const fresh = useFreshTasks();
  const query = useTask(id);
  const attempts = useQuery({
    queryKey: ["tasks", "attempts", id],
    queryFn: () => take(api.GET("/api/v1/tasks/{task}/attempts", { params: { path: { task: id } } })),
  });
  const navigate = useNavigate();
  const [open, setOpen] = useState<"start" | "cancel" | "edit" | "compete" | "remove">();
  const close = () => setOpen(undefined);
  const move = useMutation({
    mutationFn: (state: Task["state"]) =>
      take(api.PATCH("/api/v1/tasks/{task}", { params: { path: { task: id } }, body: { state } })),
    onSuccess: (next) => queries.setQueryData(["tasks", "one", id], next),
    onError: toastError,
    onSettled: fresh,
  });
  const archive = useMutation({
    mutationFn: (archived: boolean) =>
      take(api.PATCH("/api/v1/tasks/{task}", { params: { path: { task: id } }, body: { archived } })),
    onSuccess: (next) => {
      queries.setQueryData(["tasks", "one", id], next);
      toast.success(next.archived_at ? "Archived" : "Back on the board");
    },
    onError: toastError,
    onSettled: fresh,
  });
  const interrupt = useMutation({
    mutationFn: () => take(api.POST("/api/v1/tasks/{task}/interrupt", { params: { path: { task: id } } })),
    onSuccess: () => toast.success("Stopping the agent's turn"),
    onError: toastError,
    onSettled: fresh,
  });
  const task = query.data;
  const newest = [...(attempts.data ?? [])].sort((a, b) => b.number - a.number);
  const working = newest[0] !== undefined && !newest[0].ended_at;
  const allowed = may("write");
  const actions = task !== undefined && (
    <>
      <SelectField
        label="State"
        hideLabel
        value={task.state}
        disabled={!allowed || working}
        onChange={(event) => move.mutate(event.target.value as Task["state"])}
      >
        {COLUMNS.map((column) => (
          <option key={column.state} value={column.state}>
            {column.name}
          </option>
        ))}
      </SelectField>
      <Button
        data-key="e"
        disabled={!allowed}
        onClick={() => setOpen("edit")}
        icon={<Pencil aria-hidden className="size-4" />}
      >
        Edit
      </Button>
      {working && newest[0]?.fork_id == null && !isAsking(task) && (
        <Button
          disabled={!allowed || !newest[0]?.execution_id}
          busy={interrupt.isPending}
          title="Stops the agent's turn; its work stays, and it continues with what you say next"
          onClick={() => interrupt.mutate()}
          icon={<Hand aria-hidden className="size-4" />}
        >
          Interrupt
        </Button>
      )}
      {working ? (
        <Button
          tone="danger"
          disabled={!allowed}
          onClick={() => setOpen("cancel")}
          icon={<Square aria-hidden className="size-4" />}
        >
          Cancel
        </Button>
      ) : (
        <>
          <Button
            disabled={!allowed}
            onClick={() => setOpen("compete")}
            icon={<GitFork aria-hidden className="size-4" />}
          >
            Compete
          </Button>
          <Button
            // A pull request to merge is the next thing to do, if there is one.
            tone={task.state === "in_review" || task.state === "done" ? "plain" : "primary"}
            data-key="s"
            disabled={!allowed}
            onClick={() => setOpen("start")}
            icon={<Play aria-hidden className="size-4" />}
          >
            {task.attempts > 0 ? "Retry" : "Start"}
          </Button>
        </>
      )}
      {task.archived_at && <Badge>archived</Badge>}
      <DropdownMenu.Root>
        <DropdownMenu.Trigger asChild>
          <Button
            tone="ghost"
            aria-label="More"
            disabled={!allowed}
            icon={<Ellipsis aria-hidden className="size-4" />}
          />
        </DropdownMenu.Trigger>
        <DropdownMenu.Portal>
          <DropdownMenu.Content
            align="end"
            className="z-50 w-44 rounded-lg border border-line bg-surface p-1 shadow-lg"
          >
            <DropdownMenu.Item onSelect={() => archive.mutate(!task.archived_at)} className={ITEM}>
              {task.archived_at ? "Unarchive" : "Archive"}
            </DropdownMenu.Item>
            <DropdownMenu.Item
              disabled={working}
              onSelect={() => setOpen("remove")}
              className={`${ITEM} text-bad data-[disabled]:opacity-50`}
            >
              Delete
            </DropdownMenu.Item>
          </DropdownMenu.Content>
        </DropdownMenu.Portal>
      </DropdownMenu.Root>
    </>
  );
  const dialogs = task !== undefined && (
    <>
      {open === "start" && <StartDialog task={task} onClose={close} />}
      {open === "edit" && <EditTask task={task} onClose={close} />}
      {open === "compete" && <CompeteForTask task={task} onClose={close} />}
      <Confirm
        open={open === "cancel"}
        onClose={close}
        title="Cancel this attempt?"
        action="Cancel the attempt"
        danger
        onConfirm={async () => {
          await take(api.POST("/api/v1/tasks/{task}/cancel", { params: { path: { task: id } }, body: {} }));
          await fresh();
        }}
      >
        The agent is stopped and its sandbox is destroyed. What it pushed stays.
      </Confirm>
      <Confirm
        open={open === "remove"}
        onClose={close}
        title={`Delete ${plainText(task.title)}?`}
        action="Delete"
        danger
        onConfirm={async () => {
          await take(api.DELETE("/api/v1/tasks/{task}", { params: { path: { task: id } } }));
          await navigate({ to: "/board" });
          queries.removeQueries({ queryKey: ["tasks", "one", id] });
          await fresh();
        }}
      >
        Its attempts and comments are deleted; branches and pull requests stay. Archive it to keep everything.
      </Confirm>
    </>
  );
  return { task, error: query.error, attempts: newest, none: attempts.data?.length === 0, working, actions, dialogs };
}
