import { expect, it } from "vitest";
import { moved, once, type Task, type TaskState } from "./tasks";

const task = (id: string, state: TaskState) => ({ id, state }) as Task;

it("a move puts a task where it was dropped, and nowhere else", () => {
  const columns = new Map<TaskState, Task[]>([
    ["todo", [task("a", "todo"), task("b", "todo")]],
    ["done", [task("c", "done"), task("d", "done")]],
  ]);
  const ids = (next: Map<TaskState, Task[]>) => [...next.values()].map((tasks) => tasks.map((one) => one.id).join(""));
  const a = task("a", "todo");
  expect(ids(moved(columns, a, "done", "first"))).toEqual(["b", "acd"]);
  expect(ids(moved(columns, a, "done", { after: "c" }))).toEqual(["b", "cad"]);
  expect(ids(moved(columns, a, "todo", "last"))).toEqual(["ba", "cd"]);
  expect(moved(columns, a, "done", "last").get("done")?.at(-1)?.state).toBe("done");
  expect(ids(columns)).toEqual(["ab", "cd"]);
});

it("a task that moved between two answers is drawn once, as it is newest", () => {
  const old = { id: "a", state: "done", version: 1 } as Task;
  const fresh = { id: "a", state: "todo", version: 2 } as Task;
  const other = { id: "b", state: "done", version: 1 } as Task;
  const columns = once([
    ["done", [old, other]],
    ["todo", [fresh]],
  ]);
  expect(columns.get("done")).toEqual([other]);
  expect(columns.get("todo")).toEqual([fresh]);
  // One that was moved here and not yet answered for is in one column.
  expect(once([["done", [old]]]).get("done")).toEqual([old]);
});
