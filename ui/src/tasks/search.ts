// What the address of the board says. The router reads it, so it is small and needs nothing else.
export type Sort = "priority" | "newest" | "updated" | "title" | "cost";
export type Group = "agent" | "repository" | "priority" | "label" | "none";

export const SORTS: Record<Sort, string> = {
  priority: "Priority",
  newest: "Newest first",
  updated: "Changed last",
  title: "Title",
  cost: "Cost",
};

export const GROUPS: Record<Group, string> = {
  agent: "Agent",
  repository: "Repository",
  priority: "Priority",
  label: "Label",
  none: "No groups",
};

export interface BoardSearch {
  task?: string;
  q?: string;
  priority?: string;
  waiting?: boolean;
  all?: boolean;
  list?: boolean;
  sort?: Sort;
  group?: Group;
  /** How many tasks In progress may hold before its column says that it is full. */
  wip?: number;
  /** Opens the form for a new task. */
  new?: boolean;
}

const oneOf = <K extends string>(known: Record<K, string>, value: unknown): K | undefined =>
  typeof value === "string" && Object.hasOwn(known, value) ? (value as K) : undefined;

/** What an address says of the view; what it says wrongly is left out. */
export function viewOf(search: Record<string, unknown>): BoardSearch {
  const { wip } = search;
  return {
    ...(search.waiting === true ? { waiting: true } : {}),
    ...(search.all === true ? { all: true } : {}),
    ...(search.list === true ? { list: true } : {}),
    ...(oneOf(SORTS, search.sort) === undefined ? {} : { sort: oneOf(SORTS, search.sort) }),
    ...(oneOf(GROUPS, search.group) === undefined ? {} : { group: oneOf(GROUPS, search.group) }),
    ...(typeof wip === "number" && Number.isInteger(wip) && wip > 0 && wip < 1000 ? { wip } : {}),
    ...(search.new === true ? { new: true } : {}),
  };
}
