// A card of the board: what state its work is in, and whether it needs a person.
import { memo } from "react";
import { Link } from "@tanstack/react-router";
import { useSortable } from "@dnd-kit/sortable";
import { Check, CircleDashed, FolderGit2, GitPullRequest, LoaderCircle, TriangleAlert, X } from "lucide-react";
import { usePrices } from "../api/prices";
import { Badge } from "../ui/Badge";
import { classes } from "../ui/classes";
import { money, plainText } from "../ui/format";
import { Since } from "../ui/time";
import { useDoing, usePullFacts, type Activity } from "./activity";
import type { Selection } from "./selection";
import { AttemptQuestion } from "./AttemptQuestion";
import type { Task } from "./tasks";
import { missingOf } from "./view";

interface Props {
  task: Task;
  agent?: string;
  activity: Activity;
}

const PRIORITY_LOOKS: Record<string, string> = { urgent: "font-semibold text-bad", high: "font-semibold text-ink" };

const CHECKS: Record<string, [typeof Check, string, string]> = {
  success: [Check, "text-ok", "checks passed"],
  failure: [X, "text-bad", "checks failed"],
  error: [X, "text-bad", "checks failed"],
  pending: [CircleDashed, "text-info", "checks are running"],
};

function Working({ task, activity }: { task: Task; activity: Activity }) {
  const doing = useDoing(task.id);
  const since = activity.attempt?.started_at;
  return (
    <div className="flex items-center gap-1.5 text-xs text-accent">
      <LoaderCircle aria-hidden className="size-3.5 shrink-0 animate-spin" />
      <span className="min-w-0 flex-1 truncate" title={doing}>
        {since ? (doing ?? "Working") : "Queued"}
      </span>
      {since && (
        <span className="shrink-0 tabular-nums">
          <Since at={since} />
        </span>
      )}
    </div>
  );
}

export function PullFacts({ task }: { task: Task }) {
  const { number, size, checks } = usePullFacts(task);
  if (number === undefined) return null;
  const [Mark, look, said] = CHECKS[checks ?? ""] ?? [undefined, "", ""];
  return (
    <span className="inline-flex items-center gap-1">
      <GitPullRequest aria-hidden className="size-3.5" />
      <span className="sr-only">pull request</span>#{number}
      {Mark !== undefined && (
        <span className={look} title={said}>
          <Mark aria-hidden className="size-3.5" />
          <span className="sr-only">{said}</span>
        </span>
      )}
      {size !== undefined && (
        <span className="tabular-nums">
          <span className="text-ok">+{size.additions}</span> <span className="text-bad">−{size.deletions}</span>
        </span>
      )}
    </span>
  );
}

export function CardFace({ task, agent, activity }: Props) {
  const currency = usePrices()?.currency ?? "USD";
  const { needs, working, cost } = activity;
  const missing = missingOf(task);
  return (
    <div
      className={classes(
        "relative space-y-2 overflow-hidden rounded-md border bg-surface p-2.5 shadow-xs",
        needs === undefined ? "border-line" : "border-warn/60 border-l-4 border-l-warn",
      )}
    >
      {working && <span aria-hidden className="at-work absolute inset-x-0 top-0 h-0.5" />}
      <p className="line-clamp-3 pr-5 font-medium break-words">{plainText(task.title)}</p>
      {needs !== undefined && (
        <p className="flex items-center gap-1.5 rounded bg-warn-soft px-1.5 py-1 text-xs font-medium text-warn">
          <TriangleAlert aria-hidden className="size-3.5 shrink-0" />
          <span className="min-w-0 truncate">Needs you: {needs}</span>
        </p>
      )}
      {working && <Working task={task} activity={activity} />}
      {missing !== undefined && <p className="text-xs text-dim">{missing}</p>}
      <div className="flex flex-wrap items-center gap-x-2.5 gap-y-1 text-xs text-dim">
        {task.priority !== "medium" && <span className={PRIORITY_LOOKS[task.priority]}>{task.priority}</span>}
        {task.labels.slice(0, 3).map((label) => (
          <Badge key={label}>{plainText(label)}</Badge>
        ))}
        {task.repository && (
          <span className="inline-flex min-w-0 items-center gap-1">
            <FolderGit2 aria-hidden className="size-3.5 shrink-0" />
            <span className="truncate">{plainText(task.repository)}</span>
          </span>
        )}
        {agent !== undefined && <span className="truncate">{plainText(agent)}</span>}
        {task.attempts > 1 && <span>attempt {task.attempts}</span>}
        <PullFacts task={task} />
        {cost !== undefined && (
          <span className="tabular-nums">
            {money(cost, currency)}
            {task.budget ? ` of ${money(task.budget, currency)}` : ""}
          </span>
        )}
      </div>
    </div>
  );
}

/** Selects the task. It shows when the card is pointed at or focused, and on all cards once one is selected. */
export function CardCheck({
  task,
  selected,
  shown,
  choose,
  className,
}: {
  task: Task;
  selected: boolean;
  shown: boolean;
  choose: Selection["choose"];
  className?: string;
}) {
  return (
    <input
      type="checkbox"
      aria-label={`Select ${plainText(task.title)}`}
      title="Select (x)"
      // Keys select by x, and pass over these.
      tabIndex={-1}
      checked={selected}
      onChange={() => undefined}
      onClick={(event) => choose(task.id, event.shiftKey)}
      className={classes(
        "absolute top-2.5 right-2.5 size-4 shrink-0 cursor-pointer accent-(--accent)",
        !selected && !shown && "opacity-0 group-focus-within:opacity-100 group-hover:opacity-100",
        className,
      )}
    />
  );
}

interface CardProps extends Props {
  movable: boolean;
  selected: boolean;
  selecting: boolean;
  choose: Selection["choose"];
}

export const TaskCard = memo(function TaskCard({ movable, selected, selecting, choose, ...face }: CardProps) {
  const { task } = face;
  const { setNodeRef, attributes, listeners, transform, transition, isDragging } = useSortable({
    id: task.id,
    disabled: !movable,
  });
  // The link is the whole card: a click opens it, Enter does too, a drag or Space moves it.
  const { onKeyDown, ...pointers } = (listeners ?? {}) as { onKeyDown?: (event: React.KeyboardEvent) => void };
  return (
    <li
      ref={setNodeRef}
      className={classes(
        "group relative rounded-md [content-visibility:auto] [contain-intrinsic-size:auto_84px]",
        selected && "outline-2 outline-accent",
        isDragging && "opacity-40",
      )}
      style={{
        transform: transform === null ? undefined : `translate3d(${transform.x}px, ${transform.y}px, 0)`,
        transition,
      }}
    >
      <Link
        to="/board"
        search={(old) => ({ ...old, task: task.id })}
        data-row
        data-task={task.id}
        draggable={false}
        {...(movable ? { ...attributes, ...pointers } : {})}
        role="link"
        aria-roledescription={movable ? "card that can be moved" : undefined}
        onKeyDown={(event) => event.key !== "Enter" && onKeyDown?.(event)}
        onClick={(event) => {
          if (!event.shiftKey) return;
          event.preventDefault();
          choose(task.id, true);
        }}
        className={classes(
          "block rounded-md outline-offset-2 hover:brightness-[0.98] dark:hover:brightness-110",
          movable && "cursor-grab touch-manipulation",
        )}
      >
        <CardFace {...face} />
      </Link>
      {movable && <CardCheck task={task} selected={selected} shown={selecting} choose={choose} />}
      <AttemptQuestion task={task} small />
    </li>
  );
});
