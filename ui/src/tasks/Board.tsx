// The board: tasks in columns, as people ordered them, live.
import { useMemo, useState } from "react";
import { useNavigate, useSearch } from "@tanstack/react-router";
import {
  DndContext,
  DragOverlay,
  KeyboardSensor,
  MouseSensor,
  TouchSensor,
  useSensor,
  useSensors,
  type Announcements,
  type DragEndEvent,
  type UniqueIdentifier,
} from "@dnd-kit/core";
import { Plus } from "lucide-react";
import { useAgentNames } from "../api/agents";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { ErrorBox, Loading } from "../ui/feedback";
import { plainText } from "../ui/format";
import { Page } from "../ui/layout";
import { useActivities } from "./activity";
import { BulkBar } from "./BulkBar";
import { Column } from "./Column";
import { Drawer } from "./Drawer";
import { FirstSteps } from "./FirstSteps";
import { inColumns, steps } from "./moving";
import { NewTask } from "./NewTask";
import { useSelection } from "./selection";
import { StartDialog } from "./StartDialog";
import { CardFace } from "./TaskCard";
import { TaskList } from "./TaskList";
import { COLUMNS, once, useColumns, useMove, type Place, type Task, type TaskState } from "./tasks";
import { grouped, sorted, type BoardSearch } from "./view";
import { ViewBar } from "./ViewBar";

/** The click that ends a drag is not a click on the card, which is a link. */
function swallowClick() {
  const swallow = (event: MouseEvent) => event.preventDefault();
  addEventListener("click", swallow, { capture: true });
  return () => void setTimeout(() => removeEventListener("click", swallow, { capture: true }), 0);
}

export function Board() {
  // What is looked at is in the address, so that it can be sent to somebody, and come back to.
  const search = useSearch({ from: "/shell/board" });
  const { task: looked, q = "", priority = "", waiting = false, all: hidden = false, list = false } = search;
  const { sort, group, wip, new: making = false } = search;
  const navigate = useNavigate({ from: "/board" });
  const look = (next: BoardSearch) => void navigate({ search: (old) => ({ ...old, ...next }), replace: true });
  const setMaking = (open: boolean) => look({ new: open || undefined });
  const [dragged, setDragged] = useState<string>();
  const [clicks, setClicks] = useState<{ back: () => void }>();
  const [starting, setStarting] = useState<{ task: Task; place: Place }>();
  const activityOf = useActivities();
  const shown = COLUMNS.filter((column) => hidden || !column.hidden);
  const queries = useColumns(shown.map((column) => column.state));
  const names = useAgentNames();
  const columns = useMemo(
    () => once(shown.map((column, at) => [column.state, queries[at]?.data ?? []])),
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
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = (task: Task) => {
    const all =
      `${task.title} ${task.labels.join(" ")} ${task.repository ?? ""} ${names.get(task.agent_id ?? "") ?? ""}`.toLowerCase();
    return (
      words.every((word) => all.includes(word)) &&
      (priority === "" || task.priority === priority) &&
      (!waiting || activityOf(task).needs !== undefined)
    );
  };
  const seen = new Map(
    shown.map(({ state }) => [state, sorted((columns.get(state) ?? []).filter(wanted), sort, activityOf)]),
  );
  const groups = list
    ? grouped([...seen.values()].flat(), group, (id) => names.get(id) ?? id).map((one) =>
        group === undefined ? one : { ...one, tasks: sorted(one.tasks, sort, activityOf) },
      )
    : [];
  const everything = list ? groups.flatMap((one) => one.tasks) : [...seen.values()].flat();
  const { ids, selection, clear } = useSelection(everything.map((task) => task.id));
  const picked = [...columns.values()].flat().filter((task) => ids.has(task.id));
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
    if (sort !== undefined) {
      // The order is not people's: only another column means something.
      if (other.state !== task.state) put(task, other.state, "last");
      return;
    }
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

  const isEmpty = [...columns.values()].every((tasks) => tasks.length === 0);
  const failed = queries.find((query) => query.error !== null && query.data === undefined);
  const lifted = dragged === undefined ? undefined : find(dragged);
  return (
    <Page
      fill
      title="Board"
      actions={
        <Button
          // Until there is a task, the first steps have the main button.
          tone={isEmpty ? "plain" : "primary"}
          disabled={!may("write")}
          onClick={() => setMaking(true)}
          icon={<Plus aria-hidden className="size-4" />}
        >
          New task
        </Button>
      }
    >
      <ViewBar
        search={search}
        look={look}
        open={(view) => void navigate({ search: ({ task }) => ({ ...view, task }), replace: true })}
      />
      {picked.length > 0 && <BulkBar tasks={picked} onClear={clear} />}
      <FirstSteps tasks={[...columns.values()].flat()} onNewTask={() => setMaking(true)} />
      {failed !== undefined ? (
        <ErrorBox error={failed.error} retry={() => void failed.refetch()} />
      ) : queries.some((query) => query.isPending) ? (
        <Loading what="Loading the board" />
      ) : list ? (
        <TaskList {...{ groups, names, activityOf, selection }} withState={group !== undefined} />
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
            className="flex min-h-80 flex-1 gap-3 overflow-x-auto pb-2"
            tabIndex={0}
            role="region"
            aria-label="Columns"
          >
            {shown.map((column) => (
              <Column
                key={column.state}
                state={column.state}
                name={column.name}
                tasks={seen.get(column.state) ?? []}
                limit={column.state === "in_progress" ? wip : undefined}
                selection={selection}
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
