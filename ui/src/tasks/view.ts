// A view of the board: how tasks are sorted and grouped. All of it is in the address, so that a view can be sent and saved.
import type { Activity } from "./activity";
import { COLUMNS, PRIORITIES, type Task } from "./tasks";
import type { BoardSearch, Group, Sort } from "./search";

export { GROUPS, SORTS, viewOf, type BoardSearch, type Group, type Sort } from "./search";

/** What of an address belongs to the view, and not to what is open on top of it. */
export function viewIn({ task: _task, new: _new, ...view }: BoardSearch): BoardSearch {
  return view;
}

type Look = (task: Task) => Pick<Activity, "cost">;

const ORDERS: Record<Sort, (a: Task, b: Task, look: Look) => number> = {
  priority: (a, b) => PRIORITIES.indexOf(a.priority) - PRIORITIES.indexOf(b.priority),
  newest: (a, b) => b.created_at.localeCompare(a.created_at),
  updated: (a, b) => b.updated_at.localeCompare(a.updated_at),
  title: (a, b) => a.title.localeCompare(b.title, undefined, { numeric: true }),
  cost: (a, b, look) => (look(b).cost ?? 0) - (look(a).cost ?? 0),
};

/** The tasks in that order; equal ones stay in the order that people gave them. */
export function sorted(tasks: Task[], sort: Sort | undefined, look: Look): Task[] {
  return sort === undefined ? tasks : [...tasks].sort((a, b) => ORDERS[sort](a, b, look));
}

export interface TaskGroup {
  key: string;
  name: string;
  tasks: Task[];
}

const NONE: Record<"agent" | "repository" | "label", string> = {
  agent: "No agent",
  repository: "No repository",
  label: "No label",
};

/** The tasks by what they share. One with several labels is in several groups. Those without any come last. */
export function grouped(tasks: Task[], group: Group | undefined, agentName: (id: string) => string): TaskGroup[] {
  if (group === "none") return [{ key: "all", name: "All tasks", tasks }];
  const named = (all: { key: string; name: string }[], of: (task: Task) => string) =>
    all
      .map(({ key, name }) => ({ key, name, tasks: tasks.filter((task) => of(task) === key) }))
      .filter((one) => one.tasks.length > 0);
  if (group === undefined)
    return named(
      COLUMNS.map(({ state, name }) => ({ key: state, name })),
      (task) => task.state,
    );
  if (group === "priority")
    return named(
      PRIORITIES.map((one) => ({ key: one, name: one.charAt(0).toUpperCase() + one.slice(1) })),
      (task) => task.priority,
    );
  const keysOf = (task: Task): string[] => {
    if (group === "label") return [...new Set(task.labels)];
    const key = group === "agent" ? task.agent_id : task.repository;
    return key ? [key] : [];
  };
  const found = new Map<string, Task[]>();
  for (const task of tasks)
    for (const key of keysOf(task).length > 0 ? keysOf(task) : [""]) found.set(key, [...(found.get(key) ?? []), task]);
  return [...found]
    .map(([key, own]) => ({
      key: key === "" ? "none" : `of ${key}`,
      name: key === "" ? NONE[group] : group === "agent" ? agentName(key) : key,
      tasks: own,
    }))
    .sort((a, b) => Number(a.key === "none") - Number(b.key === "none") || a.name.localeCompare(b.name));
}

/** What a task needs before an agent can work on it, in words. */
export function missingOf(task: Pick<Task, "state" | "repository" | "agent_id">): string | undefined {
  if (task.state !== "backlog" && task.state !== "todo") return undefined;
  if (!task.repository) return task.agent_id ? "No repository" : "No repository, no agent";
  return task.agent_id ? undefined : "No agent";
}
