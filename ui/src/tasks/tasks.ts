// What the board and the page of a task ask and change.
import { useMutation, useQueries, useQuery, useQueryClient, type QueryClient } from "@tanstack/react-query";
import { api, take, type Schemas } from "../api/client";
import type { Tone } from "../ui/Badge";
import { toastError } from "../ui/feedback";

export type Task = Schemas["Task"];
export type TaskState = Schemas["TaskState"];
export type Priority = Schemas["TaskPriority"];
export type Place = NonNullable<Schemas["ChangedTask"]["place"]>;

export const COLUMNS: { state: TaskState; name: string; hidden: boolean }[] = [
  { state: "backlog", name: "Backlog", hidden: true },
  { state: "todo", name: "To do", hidden: false },
  { state: "in_progress", name: "In progress", hidden: false },
  { state: "in_review", name: "In review", hidden: false },
  { state: "done", name: "Done", hidden: false },
  { state: "cancelled", name: "Cancelled", hidden: true },
];

export const PRIORITIES: Priority[] = ["urgent", "high", "medium", "low"];
export const PRIORITY_TONES: Record<string, Tone> = { urgent: "bad", high: "dim", medium: "dim", low: "dim" };

/** A column holds this many at most; older ones are found by their address. */
const MOST = 600;

async function column(state: TaskState): Promise<Task[]> {
  const tasks: Task[] = [];
  let cursor: string | undefined;
  do {
    const page = await take(
      api.GET("/api/v1/tasks", { params: { query: { state, order: "board", limit: 200, cursor } } }),
    );
    tasks.push(...page.items);
    cursor = page.next ?? undefined;
  } while (cursor !== undefined && tasks.length < MOST);
  return tasks;
}

export function useColumns(states: TaskState[]) {
  return useQueries({
    queries: states.map((state) => ({ queryKey: ["tasks", "column", state], queryFn: () => column(state) })),
  });
}

export function useTask(id: string) {
  return useQuery({
    queryKey: ["tasks", "one", id],
    queryFn: () => take(api.GET("/api/v1/tasks/{task}", { params: { path: { task: id } } })),
  });
}

/**
 * The columns with each task in one of them, as it is newest: columns are asked for one by one, so that a task that moved
 * meanwhile may be in two.
 */
export function once(columns: [TaskState, Task[]][]): Map<TaskState, Task[]> {
  const newest = new Map<string, Task>();
  for (const task of columns.flatMap(([, tasks]) => tasks))
    if ((newest.get(task.id)?.version ?? -1) < task.version) newest.set(task.id, task);
  return new Map(columns.map(([state, tasks]) => [state, tasks.filter((task) => newest.get(task.id) === task)]));
}

/** Where a task lies after a move, without waiting for the server. */
export function moved(
  columns: Map<TaskState, Task[]>,
  task: Task,
  to: TaskState,
  place: Place,
): Map<TaskState, Task[]> {
  const next = new Map([...columns].map(([state, tasks]) => [state, tasks.filter((one) => one.id !== task.id)]));
  const target = next.get(to) ?? [];
  const at =
    place === "first" ? 0 : place === "last" ? target.length : target.findIndex((one) => one.id === place.after) + 1;
  next.set(to, [...target.slice(0, at), { ...task, state: to }, ...target.slice(at)]);
  return next;
}

function show(queries: QueryClient, columns: Map<TaskState, Task[]>) {
  for (const [state, tasks] of columns) queries.setQueryData(["tasks", "column", state], tasks);
}

/** As they are now: an event may have changed them since they were drawn. */
function columnsIn(queries: QueryClient, states: Iterable<TaskState>): Map<TaskState, Task[]> {
  return new Map([...states].map((state) => [state, queries.getQueryData<Task[]>(["tasks", "column", state]) ?? []]));
}

export function useMove(columns: Map<TaskState, Task[]>) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: ({ task, to, place }: { task: Task; to: TaskState; place: Place }) =>
      take(
        api.PATCH("/api/v1/tasks/{task}", {
          params: { path: { task: task.id } },
          body: { place, ...(task.state === to ? {} : { state: to }) },
        }),
      ),
    onMutate: async ({ task, to, place }) => {
      await queries.cancelQueries({ queryKey: ["tasks", "column"] });
      const before = columnsIn(queries, columns.keys());
      show(queries, moved(before, task, to, place));
      return before;
    },
    // The server may be away, so that asking it again would not put the card back.
    onError: (error, _, before) => {
      if (before !== undefined) show(queries, before);
      toastError(error);
    },
    onSettled: () => queries.invalidateQueries({ queryKey: ["tasks"] }),
  });
}

export function useFreshTasks() {
  const queries = useQueryClient();
  return () => queries.invalidateQueries({ queryKey: ["tasks"] });
}
