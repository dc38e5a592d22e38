import { expect, it } from "vitest";
import type { Task } from "./tasks";
import { grouped, missingOf, sorted, viewOf } from "./view";

const task = (id: string, more: Partial<Task> = {}) =>
  ({
    ...{ id, title: id, state: "todo", priority: "medium", labels: [], created_at: "2026-01-01T00:00:00Z" },
    ...{ updated_at: "2026-01-01T00:00:00Z", ...more },
  }) as unknown as Task;
const free = () => ({ cost: undefined });
const ids = (tasks: Task[]) => tasks.map((one) => one.id).join("");

it("tasks are sorted by what was asked, and equal ones stay as people ordered them", () => {
  const tasks = [task("b"), task("a", { priority: "urgent" }), task("c", { created_at: "2026-02-01T00:00:00Z" })];
  expect(ids(sorted(tasks, undefined, free))).toBe("bac");
  expect(ids(sorted(tasks, "priority", free))).toBe("abc");
  expect(ids(sorted(tasks, "newest", free))).toBe("cba");
  expect(ids(sorted(tasks, "title", free))).toBe("abc");
  expect(ids(sorted(tasks, "cost", (one) => ({ cost: one.id === "c" ? 2 : 0 })))).toBe("cba");
  expect(ids(sorted([task("t10"), task("t9")], "title", free))).toBe("t9t10");
});

it("tasks are grouped by what they share, the rest last, and with two labels they are in two groups", () => {
  const tasks = [
    task("a", { labels: ["bug", "ui"], agent_id: "1", repository: "shop" }),
    task("b", { labels: ["bug"], state: "done" }),
    task("c"),
  ];
  const shown = (group: Parameters<typeof grouped>[1]) =>
    grouped(tasks, group, (id) => `agent ${id}`).map((one) => `${one.name}: ${ids(one.tasks)}`);
  expect(shown(undefined)).toEqual(["To do: ac", "Done: b"]);
  expect(shown("label")).toEqual(["bug: ab", "ui: a", "No label: c"]);
  expect(shown("agent")).toEqual(["agent 1: a", "No agent: bc"]);
  expect(shown("repository")).toEqual(["shop: a", "No repository: bc"]);
  expect(shown("priority")).toEqual(["Medium: abc"]);
  expect(shown("none")).toEqual(["All tasks: abc"]);
});

it("an address is read as far as it is right", () => {
  expect(viewOf({ list: true, sort: "cost", group: "label", wip: 3 })).toEqual({
    ...{ list: true, sort: "cost", group: "label", wip: 3 },
  });
  expect(viewOf({ list: "yes", sort: "toString", group: 4, wip: -1, evil: 1 })).toEqual({});
});

it("a task that no agent can start yet says what it lacks", () => {
  expect(missingOf(task("a"))).toBe("No repository, no agent");
  expect(missingOf(task("a", { agent_id: "1" }))).toBe("No repository");
  expect(missingOf(task("a", { repository: "shop" }))).toBe("No agent");
  expect(missingOf(task("a", { repository: "shop", agent_id: "1" }))).toBeUndefined();
  expect(missingOf(task("a", { state: "done" }))).toBeUndefined();
});
