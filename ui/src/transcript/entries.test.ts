import { expect, test } from "vitest";
import { gist, merged, newestTodos, whole, type Entry } from "./entries";

const entry = (sequence: number, change: number, text: string) =>
  ({ kind: "message", sequence, change, text: { text } }) as Entry;

test("a changed entry replaces its older version, whichever comes first", () => {
  const all = merged([entry(1, 1, "a"), entry(2, 2, "b")], [entry(2, 5, "B"), entry(3, 4, "c")]);
  const late = merged(all, [entry(2, 3, "old")]);
  expect(late.map((one) => one.kind === "message" && one.text.text)).toEqual(["a", "B", "c"]);
});

test("what was cut is said", () => {
  expect(whole({ text: "a", cut_bytes: 7, end: "z" })).toBe("a\n… 7 bytes left out …\nz");
  expect(whole({ text: "a" })).toBe("a");
});

test("a tool call is told by the value that tells most", () => {
  expect(gist({ text: '{"limit":3,"file_path":"src/a.rs"}' })).toBe("src/a.rs");
  expect(gist({ text: "not json" })).toBe("not json");
});

test("the newest todo list counts", () => {
  const todos = (sequence: number, text: string) =>
    ({ kind: "todos", sequence, items: [{ text, state: "done" }] }) as Entry;
  expect(newestTodos([todos(1, "old"), entry(2, 2, "x"), todos(3, "new")])).toEqual([{ text: "new", state: "done" }]);
});
