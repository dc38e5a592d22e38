// A column of the board: its tasks as cards, and a field that adds one.
import { useState, type FormEvent } from "react";
import { useMutation } from "@tanstack/react-query";
import { useDroppable } from "@dnd-kit/core";
import { SortableContext, verticalListSortingStrategy } from "@dnd-kit/sortable";
import { Plus } from "lucide-react";
import { api, take } from "../api/client";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { toastError } from "../ui/feedback";
import { TextField } from "../ui/fields";
import { useGrowing } from "../ui/growing";
import type { Activity } from "./activity";
import { useOnlyChoices } from "./choices";
import { EditTask } from "./NewTask";
import type { Selection } from "./selection";
import { TaskCard } from "./TaskCard";
import { useFreshTasks, type Task, type TaskState } from "./tasks";
import { missingOf } from "./view";

function QuickAdd() {
  const fresh = useFreshTasks();
  const { agent, repository } = useOnlyChoices();
  const [title, setTitle] = useState("");
  const [added, setAdded] = useState<Task>();
  const [filling, setFilling] = useState(false);
  const add = useMutation({
    mutationFn: () =>
      take(
        api.POST("/api/v1/tasks", {
          body: {
            title: title.trim(),
            state: "todo",
            ...(agent === undefined ? {} : { agent_id: agent }),
            ...(repository === undefined ? {} : { repository }),
          },
        }),
      ),
    onSuccess: (task) => {
      setTitle("");
      setAdded(task);
      void fresh();
    },
    onError: toastError,
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    add.mutate();
  };
  const missing = added === undefined ? undefined : missingOf(added);
  return (
    <>
      <form onSubmit={submit} className="flex gap-1.5">
        <div className="min-w-0 flex-1">
          <TextField
            label="New task to do"
            hideLabel
            required
            placeholder="Add a task"
            value={title}
            onChange={(event) => setTitle(event.target.value)}
          />
        </div>
        <Button
          type="submit"
          aria-label="Add the task"
          busy={add.isPending}
          icon={<Plus aria-hidden className="size-4" />}
        />
      </form>
      <div role="status">
        {added !== undefined && missing !== undefined && (
          <p className="mt-1.5 flex items-center gap-2 text-xs text-dim">
            <span className="min-w-0 flex-1">Added. {missing} yet: no agent can start it.</span>
            <Button className="h-6 px-2 text-xs" onClick={() => setFilling(true)}>
              Fill in
            </Button>
          </p>
        )}
      </div>
      {filling && added !== undefined && (
        <EditTask
          task={added}
          onClose={() => {
            setFilling(false);
            setAdded(undefined);
          }}
        />
      )}
    </>
  );
}

/** Cards that a column draws at first, and more of when its end is scrolled to. */
const AT_ONCE = 40;

interface Props {
  state: TaskState;
  name: string;
  tasks: Task[];
  names: Map<string, string>;
  activityOf: (task: Task) => Activity;
  movable: boolean;
  selection: Selection;
  /** How many tasks it may hold before it says that it is full. */
  limit?: number;
}

export function Column({ state, name, tasks, names, activityOf, movable, selection, limit }: Props) {
  const { setNodeRef, isOver } = useDroppable({ id: `column:${state}` });
  const { most, end } = useGrowing(AT_ONCE);
  const drawn = tasks.slice(0, most);
  const full = limit !== undefined && tasks.length > limit;
  return (
    <section
      aria-label={name}
      className="flex w-[280px] shrink-0 flex-col rounded-lg bg-raised lg:w-auto lg:min-w-[220px] lg:flex-1"
    >
      <h2 className="flex items-center gap-2 px-3 pt-3 pb-2 font-semibold">
        {name}{" "}
        <span className={classes("font-normal tabular-nums", full ? "text-warn" : "text-dim")}>
          {tasks.length}
          {limit !== undefined && ` of ${limit}`}
        </span>
        {full && <span className="text-xs font-normal text-warn">over its limit</span>}
      </h2>
      {state === "todo" && movable && (
        <div className="px-2 pb-2">
          <QuickAdd />
        </div>
      )}
      <SortableContext items={drawn.map((task) => task.id)} strategy={verticalListSortingStrategy}>
        <ul
          ref={setNodeRef}
          className={classes(
            "min-h-24 flex-1 space-y-2 overflow-y-auto rounded-lg p-2 pt-0",
            isOver && "outline-2 outline-accent",
          )}
        >
          {drawn.map((task) => (
            <TaskCard
              key={task.id}
              task={task}
              activity={activityOf(task)}
              agent={task.agent_id ? (names.get(task.agent_id) ?? undefined) : undefined}
              movable={movable}
              selected={selection.has(task.id)}
              selecting={selection.some}
              choose={selection.choose}
            />
          ))}
          {/* Another mark each time: one that stays in view is told of once. */}
          {drawn.length < tasks.length && <li key={most} ref={end} aria-hidden className="h-px" />}
        </ul>
      </SortableContext>
    </section>
  );
}
