import { expect, test } from "vitest";
import { placed, type Sandbox, type SandboxPages } from "./sandboxes";

const one = (id: string, state: string, minute: number) =>
  ({ id, state, created_at: new Date(minute * 60_000).toISOString() }) as Sandbox;
const list = (next: string | undefined, ...items: Sandbox[]): SandboxPages => ({
  pages: [{ items, next }],
  pageParams: [undefined],
});
const ids = (pages: SandboxPages) => pages.pages.map((page) => page.items.map(({ id, state }) => `${id} ${state}`));

test("one that is in a list is replaced there, and nowhere else", () => {
  const before = list(undefined, one("b", "running", 2), one("a", "running", 1));
  expect(ids(placed(before, "live", one("a", "paused", 1)))).toEqual([["b running", "a paused"]]);
});

test("one that ends comes into the list of those that ended, at its place", () => {
  const ended = list(undefined, one("c", "error", 3), one("a", "terminated", 1));
  expect(ids(placed(ended, "ended", one("b", "error", 2)))).toEqual([["c error", "b error", "a terminated"]]);
  expect(ids(placed(list(undefined), "ended", one("b", "terminated", 2)))).toEqual([["b terminated"]]);
});

test("what does not belong is not put in, nor what is further down than was loaded", () => {
  const ended = list("more", one("c", "error", 3));
  expect(placed(ended, "ended", one("d", "running", 4))).toBe(ended);
  expect(placed(ended, "ended", one("a", "terminated", 1))).toBe(ended);
  expect(ids(placed(list(undefined, one("c", "error", 3)), "all", one("a", "running", 1)))).toEqual([
    ["c error", "a running"],
  ]);
});
