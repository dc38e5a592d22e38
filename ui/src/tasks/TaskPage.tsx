// The page of a task, in tabs: the conversation with its agent, what changed, whether it passed, a terminal, and the rest.
import { lazy, Suspense } from "react";
import { Link, useParams, useSearch } from "@tanstack/react-router";
import { SquareTerminal } from "lucide-react";
import { useSandbox } from "../api/sandboxes";
import { may } from "../api/session";
import type { TaskTab } from "../router";
import { useTitle } from "../shell/title";
import { Badge } from "../ui/Badge";
import { classes } from "../ui/classes";
import { Empty, ErrorBox, Loading } from "../ui/feedback";
import { plainText } from "../ui/format";
import { Card } from "../ui/layout";
import { InlineMarkdown } from "../ui/Markdown";
import { TAB, Tabs } from "../ui/Tabs";
import { Since } from "../ui/time";
import { Artifacts } from "../work/Artifacts";
import { useDoing } from "./activity";
import { isAsking } from "./asking";
import { AttemptCard, type Attempt } from "./AttemptCard";
import { Changes, PullActions } from "./Changes";
import { ChecksTab } from "./ChecksTab";
import { CompareAttempts } from "./CompareAttempts";
import { Conversation } from "./Conversation";
import { Previews } from "./Previews";
import { COLUMNS, type Task } from "./tasks";
import { History, NeedsAttention, useTaskWork, Wanted } from "./TaskParts";

const Terminals = lazy(() =>
  import("../terminal/TerminalTab").then((module) => ({ default: module.SandboxTerminals })),
);

const TABS: [TaskTab, string][] = [
  ["conversation", "Conversation"],
  ["changes", "Changes"],
  ["checks", "Checks"],
  ["terminal", "Terminal"],
  ["details", "Details"],
];

function TerminalHere({ attempt }: { attempt: Attempt | undefined }) {
  const sandbox = useSandbox(attempt?.sandbox_id ?? "").data;
  const live = sandbox !== undefined && ["running", "paused"].includes(sandbox.state);
  if (!live || !may("write") || attempt?.sandbox_id === null || attempt?.sandbox_id === undefined) {
    return (
      <Card>
        <Empty icon={<SquareTerminal aria-hidden className="size-6" />} title="No sandbox to open a terminal in">
          A terminal opens in the sandbox of an attempt while the attempt runs.
        </Empty>
      </Card>
    );
  }
  return (
    <Card className="flex min-h-80 flex-1 flex-col overflow-hidden">
      <Suspense fallback={<Loading />}>
        <Terminals id={attempt.sandbox_id} />
      </Suspense>
    </Card>
  );
}

/** Where the work stands, in one line. */
function Standing({ task, attempt }: { task: Task; attempt: Attempt | undefined }) {
  const doing = useDoing(task.id);
  const column = COLUMNS.find(({ state }) => state === task.state)?.name ?? task.state;
  const working = attempt !== undefined && !attempt.ended_at && !isAsking(task);
  return (
    <p role="status" className="flex min-w-0 flex-wrap items-center gap-x-2 gap-y-1 text-sm text-dim">
      <Badge tone={working ? "info" : task.needs_attention ? "warn" : "dim"}>
        {working && <span aria-hidden className="size-1.5 animate-pulse rounded-full bg-current" />}
        {isAsking(task) ? "Waits for you" : working ? (attempt.started_at ? "Working" : "Queued") : column}
      </Badge>
      {working && attempt.started_at && <Since at={attempt.started_at} />}
      {working && doing !== undefined && <span className="max-w-md min-w-0 truncate font-mono text-xs">{doing}</span>}
      {task.repository && <span>{plainText(task.repository)}</span>}
      {attempt !== undefined && attempt.number > 1 && <span>attempt {attempt.number}</span>}
    </p>
  );
}

export function TaskPage() {
  const { task: id } = useParams({ from: "/shell/tasks/$task" });
  const { tab = "conversation" } = useSearch({ from: "/shell/tasks/$task" });
  const { task, error, attempts, none, working, actions, dialogs } = useTaskWork(id);
  useTitle(plainText(task?.title ?? "Task"));
  if (task === undefined) return error === null ? <Loading /> : <ErrorBox error={error} className="m-5" />;
  const fills = tab === "conversation" || tab === "terminal";
  return (
    <div className="flex h-full min-h-0 flex-col">
      <div className="shrink-0 border-b border-line bg-surface px-3 pt-3 sm:px-5">
        <div className="flex flex-wrap items-start justify-between gap-x-4 gap-y-2">
          {/* Buttons come when the agent is done. Where they need a row of their own they have it always: else they push the
              tabs away below somebody's pointer, and are in their place. */}
          <div className="min-w-0 flex-1 basis-72 space-y-1 max-[90rem]:basis-full">
            <h1 className="line-clamp-2 text-lg font-semibold break-words">
              <Link to="/board" className="font-normal text-dim hover:text-ink">
                Board
              </Link>
              <span aria-hidden className="px-1.5 font-normal text-dim">
                /
              </span>
              <InlineMarkdown text={task.title} />
            </h1>
            <Standing task={task} attempt={attempts[0]} />
          </div>
          <div className="flex flex-wrap items-center gap-2">
            {actions}
            {!working && <PullActions task={task} />}
          </div>
        </div>
        <Previews attempt={attempts[0]} />
        <Tabs label="Parts of the task" className="mt-2">
          {TABS.map(([name, title]) => (
            <Link
              key={name}
              to="/tasks/$task"
              params={{ task: id }}
              search={name === "conversation" ? {} : { tab: name }}
              activeOptions={{ exact: true, includeSearch: true }}
              data-status={tab === name ? "active" : undefined}
              aria-current={tab === name ? "page" : undefined}
              className={TAB}
            >
              {title}
            </Link>
          ))}
        </Tabs>
      </div>
      <div
        className={classes(
          "flex min-h-0 flex-1 flex-col gap-4 overflow-y-auto p-3 sm:p-5",
          fills && "xl:overflow-hidden",
        )}
      >
        <NeedsAttention task={task} />
        {tab === "conversation" && <Conversation task={task} attempts={attempts} working={working} />}
        {tab === "changes" && <Changes task={task} attempt={attempts[0]} />}
        {tab === "checks" && <ChecksTab task={task} attempts={attempts} />}
        {tab === "terminal" && <TerminalHere attempt={attempts[0]} />}
        {tab === "details" && (
          <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,1fr)_380px]">
            <div className="min-w-0 space-y-4">
              {attempts.map((attempt, at) => (
                <AttemptCard key={attempt.run_id} attempt={attempt} task={task} open={at === 0} />
              ))}
              <CompareAttempts task={task} attempts={attempts} />
              {none && (
                <Card title="Attempts">
                  <Empty title="No attempts yet">Start it with an agent, or let several compete.</Empty>
                </Card>
              )}
            </div>
            <div className="min-w-0 space-y-4">
              <Wanted task={task} />
              <Artifacts of={{ task_id: id }} />
              <History id={id} />
            </div>
          </div>
        )}
      </div>
      {dialogs}
    </div>
  );
}
