// The board as a list: a row for each task, in groups. Only the rows that are seen are drawn.
import { memo, useMemo } from "react";
import { Link } from "@tanstack/react-router";
import { CircleAlert, FolderGit2, LoaderCircle } from "lucide-react";
import { usePrices } from "../api/prices";
import { Badge } from "../ui/Badge";
import { classes } from "../ui/classes";
import { money, plainText } from "../ui/format";
import { useRows } from "../ui/rows";
import { Ago } from "../ui/time";
import { useDoing, type Activity } from "./activity";
import { CardCheck, PullFacts } from "./TaskCard";
import type { Selection } from "./selection";
import { COLUMNS, type Task } from "./tasks";
import { missingOf, type TaskGroup } from "./view";

const ROW_PX = 40;

type Line = { group: TaskGroup } | { task: Task; key: string };

interface RowProps {
  task: Task;
  agent?: string;
  activity: Activity;
  selected: boolean;
  selecting: boolean;
  choose: Selection["choose"];
  /** Whether its group does not say its state. */
  withState: boolean;
}

function What({ task, activity }: { task: Task; activity: Activity }) {
  const doing = useDoing(task.id);
  if (activity.needs !== undefined)
    return (
      <span className="inline-flex min-w-0 items-center gap-1 text-warn">
        <CircleAlert aria-hidden className="size-3.5 shrink-0" />
        <span className="truncate">Needs you: {activity.needs}</span>
      </span>
    );
  if (activity.working)
    return (
      <span className="inline-flex min-w-0 items-center gap-1 text-accent">
        <LoaderCircle aria-hidden className="size-3.5 shrink-0 animate-spin" />
        <span className="truncate">{activity.attempt?.started_at ? (doing ?? "Working") : "Queued"}</span>
      </span>
    );
  const missing = missingOf(task);
  return missing === undefined ? null : <span className="truncate text-dim">{missing}</span>;
}

const Row = memo(function Row({ task, agent, activity, selected, selecting, choose, withState }: RowProps) {
  const currency = usePrices()?.currency ?? "USD";
  const { cost } = activity;
  return (
    <div
      className={classes(
        "group relative flex h-full items-center gap-3 border-b border-line px-3 hover:bg-raised",
        selected && "bg-accent-soft",
      )}
    >
      <CardCheck task={task} selected={selected} shown={selecting} choose={choose} className="static" />
      <Link
        to="/board"
        search={(old) => ({ ...old, task: task.id })}
        data-row
        data-task={task.id}
        onClick={(event) => {
          if (!event.shiftKey) return;
          event.preventDefault();
          choose(task.id, true);
        }}
        className="min-w-0 flex-1 truncate font-medium outline-offset-2"
      >
        {plainText(task.title)}
      </Link>
      <span className="flex min-w-0 shrink items-center gap-2.5 text-xs text-dim sm:max-w-[60%]">
        <What task={task} activity={activity} />
        <span className="hidden items-center gap-1.5 lg:flex">
          {task.labels.slice(0, 2).map((label) => (
            <Badge key={label}>{plainText(label)}</Badge>
          ))}
        </span>
        {task.repository && (
          <span className="hidden max-w-36 min-w-0 items-center gap-1 md:inline-flex">
            <FolderGit2 aria-hidden className="size-3.5 shrink-0" />
            <span className="truncate">{plainText(task.repository)}</span>
          </span>
        )}
        {agent !== undefined && <span className="hidden max-w-28 truncate md:inline">{plainText(agent)}</span>}
        <span className="hidden md:inline-flex">
          <PullFacts task={task} />
        </span>
        {cost !== undefined && <span className="hidden tabular-nums sm:inline">{money(cost, currency)}</span>}
        {task.priority !== "medium" && (
          <span className={task.priority === "urgent" ? "font-semibold text-bad" : "text-ink"}>{task.priority}</span>
        )}
        {withState && (
          <span className="hidden w-24 text-right sm:inline">
            {COLUMNS.find((column) => column.state === task.state)?.name}
          </span>
        )}
        <span className="hidden w-16 text-right whitespace-nowrap tabular-nums sm:inline">
          <Ago at={task.updated_at} />
        </span>
      </span>
    </div>
  );
});

interface Props {
  groups: TaskGroup[];
  names: Map<string, string>;
  activityOf: (task: Task) => Activity;
  selection: Selection;
  withState: boolean;
}

export function TaskList({ groups, names, activityOf, selection, withState }: Props) {
  const lines = useMemo<Line[]>(
    () =>
      groups.flatMap((group) => [{ group }, ...group.tasks.map((task) => ({ task, key: `${group.key} ${task.id}` }))]),
    [groups],
  );
  const rows = useRows(lines.length, ROW_PX, 12);
  return (
    <div
      ref={rows.ref}
      tabIndex={0}
      role="region"
      aria-label="Tasks"
      className="min-h-80 flex-1 overflow-y-auto rounded-lg border border-line bg-surface"
    >
      {lines.length === 0 && <p className="p-8 text-center text-dim">No task matches this view.</p>}
      <div role="list" className="relative" style={{ height: rows.total }}>
        {lines.slice(rows.first, rows.end).map((line, at) => {
          const style = { top: (rows.first + at) * ROW_PX, height: ROW_PX };
          if ("group" in line)
            return (
              <h2
                key={`group ${line.group.key}`}
                style={style}
                className="absolute inset-x-0 flex items-center gap-2 border-b border-line bg-raised px-3 font-semibold"
              >
                <span className="truncate">{plainText(line.group.name)}</span>
                <span className="font-normal text-dim tabular-nums">{line.group.tasks.length}</span>
              </h2>
            );
          const { task } = line;
          return (
            <div role="listitem" key={line.key} style={style} className="absolute inset-x-0">
              <Row
                task={task}
                activity={activityOf(task)}
                agent={task.agent_id ? names.get(task.agent_id) : undefined}
                selected={selection.has(task.id)}
                selecting={selection.some}
                choose={selection.choose}
                withState={withState}
              />
            </div>
          );
        })}
      </div>
    </div>
  );
}
