// The board: tasks in columns, as people ordered them, live.
import { useMemo, useState, type FormEvent } from "react";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useMutation } from "@tanstack/react-query";
import {
  DndContext,
  DragOverlay,
  KeyboardSensor,
  MouseSensor,
  TouchSensor,
  useDroppable,
  useSensor,
  useSensors,
  type Announcements,
  type DragEndEvent,
  type UniqueIdentifier,
} from "@dnd-kit/core";
import { SortableContext, verticalListSortingStrategy } from "@dnd-kit/sortable";
import { Plus } from "lucide-react";
import { useAgentNames } from "../api/agents";
import type { BoardSearch } from "../router";
import { api, take } from "../api/client";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { ErrorBox, Loading, toastError } from "../ui/feedback";
import { SelectField, TextField } from "../ui/fields";
import { plainText } from "../ui/format";
import { Page } from "../ui/layout";
import { useGrowing } from "../ui/growing";
import { useTyped } from "../ui/typed";
import { useActivities, type Activity } from "./activity";
import { Drawer } from "./Drawer";
import { FirstSteps } from "./FirstSteps";
import { inColumns, steps } from "./moving";
import { NewTask } from "./NewTask";
import { StartDialog } from "./StartDialog";
import { CardFace, TaskCard } from "./TaskCard";
import {
  COLUMNS,
  PRIORITIES,
  useColumns,
  useFreshTasks,
  useMove,
  type Place,
  type Task,
  type TaskState,
} from "./tasks";

function QuickAdd() {
  const fresh = useFreshTasks();
  const [title, setTitle] = useState("");
  const add = useMutation({
    mutationFn: () => take(api.POST("/api/v1/tasks", { body: { title: title.trim(), state: "todo" } })),
    onSuccess: () => {
      setTitle("");
      void fresh();
    },
    onError: toastError,
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    add.mutate();
  };
  return (
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
  );
}

/** Cards that a column draws at first, and more of when its end is scrolled to. */
const AT_ONCE = 40;

interface ColumnProps {
  state: TaskState;
  name: string;
  tasks: Task[];
  names: Map<string, string>;
  activityOf: (task: Task) => Activity;
  movable: boolean;
}

function Column({ state, name, tasks, names, activityOf, movable }: ColumnProps) {
  const { setNodeRef, isOver } = useDroppable({ id: `column:${state}` });
  const { most, end } = useGrowing(AT_ONCE);
  const drawn = tasks.slice(0, most);
  return (
    <section
      aria-label={name}
      className="flex w-[280px] shrink-0 flex-col rounded-lg bg-raised lg:w-auto lg:min-w-[220px] lg:flex-1"
    >
      <h2 className="flex items-center gap-2 px-3 pt-3 pb-2 font-semibold">
        {name} <span className="font-normal text-dim">{tasks.length}</span>
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
            />
          ))}
          {/* Another mark each time: one that stays in view is told of once. */}
          {drawn.length < tasks.length && <li key={most} ref={end} aria-hidden className="h-px" />}
        </ul>
      </SortableContext>
    </section>
  );
}

/** The click that ends a drag is not a click on the card, which is a link. */
function swallowClick() {
  const swallow = (event: MouseEvent) => event.preventDefault();
  addEventListener("click", swallow, { capture: true });
  return () => void setTimeout(() => removeEventListener("click", swallow, { capture: true }), 0);
}

export function Board() {
  // What is looked at is in the address, so that it can be sent to somebody, and come back to.
  const {
    task: looked,
    q = "",
    priority = "",
    waiting = false,
    all: hidden = false,
    new: making = false,
  } = useSearch({ from: "/shell/board" });
  const navigate = useNavigate({ from: "/board" });
  const look = (next: BoardSearch) => void navigate({ search: (old) => ({ ...old, ...next }), replace: true });
  const [text, setText] = useTyped(q, (typed) => look({ q: typed || undefined }));
  const setMaking = (open: boolean) => look({ new: open || undefined });
  const [dragged, setDragged] = useState<string>();
  const [clicks, setClicks] = useState<{ back: () => void }>();
  const [starting, setStarting] = useState<{ task: Task; place: Place }>();
  const activityOf = useActivities();
  const shown = COLUMNS.filter((column) => hidden || !column.hidden);
  const queries = useColumns(shown.map((column) => column.state));
  const names = useAgentNames();
  const columns = useMemo(
    () => new Map(shown.map((column, at) => [column.state, queries[at]?.data ?? []])),
    // eslint-disable-next-line react-hooks/exhaustive-deps
    [hidden, ...queries.map((query) => query.data)],
  );
  const move = useMove(columns);
  const sensors = useSensors(
    useSensor(MouseSensor, { activationConstraint: { distance: 5 } }),
    // A finger scrolls; it lifts a card by staying on it.
    useSensor(TouchSensor, { activationConstraint: { delay: 250, tolerance: 8 } }),
    useSensor(KeyboardSensor, {
      coordinateGetter: steps,
      keyboardCodes: { start: ["Space"], cancel: ["Escape"], end: ["Space", "Enter", "Tab"] },
    }),
  );
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = (task: Task) => {
    const all =
      `${task.title} ${task.labels.join(" ")} ${task.repository ?? ""} ${names.get(task.agent_id ?? "") ?? ""}`.toLowerCase();
    return (
      words.every((word) => all.includes(word)) &&
      (priority === "" || task.priority === priority) &&
      (!waiting || activityOf(task).needs !== undefined)
    );
  };
  const find = (id: string) => [...columns.values()].flat().find((task) => task.id === id);

  const put = (task: Task, to: TaskState, place: Place) => {
    // A card in progress that nobody works on looks like work: offer to start it.
    if (to === "in_progress" && task.state !== to && !activityOf(task).working) return setStarting({ task, place });
    move.mutate({ task, to, place });
  };
  const lift = (id: UniqueIdentifier) => {
    setDragged(String(id));
    setClicks({ back: swallowClick() });
  };
  const settle = () => {
    setDragged(undefined);
    clicks?.back();
    setClicks(undefined);
  };

  const drop = ({ active, over }: DragEndEvent) => {
    settle();
    const task = find(String(active.id));
    if (task === undefined || over === null || over.id === active.id) return;
    const onto = String(over.id);
    if (onto.startsWith("column:")) {
      const to = onto.slice("column:".length) as TaskState;
      if (to !== task.state) put(task, to, "last");
      return;
    }
    const other = find(onto);
    if (other === undefined) return;
    const tasks = columns.get(other.state) ?? [];
    const [from, at] = [tasks.findIndex((one) => one.id === task.id), tasks.findIndex((one) => one.id === other.id)];
    // Downwards within a column it comes after the one it was dropped on, else before it.
    const before = from !== -1 && from < at ? other : tasks[at - 1];
    const place: Place = before === undefined ? "first" : { after: before.id };
    put(task, other.state, place);
  };

  // For those who do not see it: titles and columns, not the ids that are moved.
  const titleOf = (id: UniqueIdentifier) => plainText(find(String(id))?.title ?? "the card");
  const columnOf = (state: string | undefined) => COLUMNS.find((column) => column.state === state)?.name ?? "no column";
  const placeOf = (id: UniqueIdentifier) => {
    const onto = String(id);
    if (onto.startsWith("column:")) return `the column ${columnOf(onto.slice("column:".length))}`;
    const state = find(onto)?.state;
    const tasks = columns.get(state as TaskState) ?? [];
    return `${titleOf(id)}, number ${tasks.findIndex((one) => one.id === onto) + 1} of ${tasks.length} in ${columnOf(state)}`;
  };
  const announcements: Announcements = {
    onDragStart: ({ active }) => `Picked up ${titleOf(active.id)}, in ${columnOf(find(String(active.id))?.state)}.`,
    onDragOver: ({ active, over }) =>
      `${titleOf(active.id)} is over ${over === null ? "no column" : placeOf(over.id)}.`,
    onDragEnd: ({ active, over }) =>
      over === null
        ? `${titleOf(active.id)} stays where it was.`
        : `${titleOf(active.id)} was dropped on ${placeOf(over.id)}.`,
    onDragCancel: ({ active }) => `${titleOf(active.id)} stays where it was.`,
  };

  const failed = queries.find((query) => query.error !== null && query.data === undefined);
  const lifted = dragged === undefined ? undefined : find(dragged);
  return (
    <Page
      fill
      title="Board"
      actions={
        <Button
          tone="primary"
          disabled={!may("write")}
          onClick={() => setMaking(true)}
          icon={<Plus aria-hidden className="size-4" />}
        >
          New task
        </Button>
      }
    >
      <div className="flex flex-wrap items-center gap-2">
        <div className="min-w-40 flex-1 sm:max-w-xs">
          <TextField
            label="Filter"
            hideLabel
            type="search"
            placeholder="Filter by title, label, agent"
            value={text}
            onChange={(event) => setText(event.target.value)}
          />
        </div>
        <SelectField
          label="Priority"
          hideLabel
          value={priority}
          onChange={(event) => look({ priority: event.target.value || undefined })}
        >
          <option value="">Every priority</option>
          {PRIORITIES.map((one) => (
            <option key={one}>{one}</option>
          ))}
        </SelectField>
        <Button
          aria-pressed={waiting}
          className={waiting ? "text-accent" : undefined}
          onClick={() => look({ waiting: !waiting || undefined })}
        >
          Needs you
        </Button>
        <Button
          aria-pressed={hidden}
          className={hidden ? "text-accent" : undefined}
          onClick={() => look({ all: !hidden || undefined })}
        >
          Backlog and cancelled
        </Button>
      </div>
      <FirstSteps
        hasTasks={[...columns.values()].some((tasks) => tasks.length > 0)}
        onNewTask={() => setMaking(true)}
      />
      {failed !== undefined ? (
        <ErrorBox error={failed.error} retry={() => void failed.refetch()} />
      ) : queries.some((query) => query.isPending) ? (
        <Loading what="Loading the board" />
      ) : (
        <DndContext
          sensors={sensors}
          accessibility={{ announcements }}
          collisionDetection={inColumns}
          onDragStart={({ active }) => lift(active.id)}
          onDragCancel={settle}
          onDragEnd={drop}
        >
          <div
            className="flex min-h-0 flex-1 gap-3 overflow-x-auto pb-2"
            tabIndex={0}
            role="region"
            aria-label="Columns"
          >
            {shown.map((column) => (
              <Column
                key={column.state}
                state={column.state}
                name={column.name}
                tasks={(columns.get(column.state) ?? []).filter(wanted)}
                names={names}
                activityOf={activityOf}
                movable={may("write")}
              />
            ))}
          </div>
          <DragOverlay>{lifted !== undefined && <CardFace task={lifted} activity={activityOf(lifted)} />}</DragOverlay>
        </DndContext>
      )}
      {making && <NewTask onClose={() => setMaking(false)} />}
      {starting !== undefined && (
        <StartDialog
          task={starting.task}
          onMoveOnly={() => move.mutate({ task: starting.task, to: "in_progress", place: starting.place })}
          onClose={() => setStarting(undefined)}
        />
      )}
      {looked !== undefined && (
        <Drawer
          key={looked}
          id={looked}
          onClose={() => void navigate({ search: (old) => ({ ...old, task: undefined }) })}
        />
      )}
    </Page>
  );
}
