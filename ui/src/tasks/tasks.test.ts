import { expect, it } from "vitest";
import { moved, type Task, type TaskState } from "./tasks";

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
