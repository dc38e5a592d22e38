import { expect, it } from "vitest";
import { chosen } from "./selection";

const shown = ["a", "b", "c", "d"];
const after = (old: string[], last: string | undefined, id: string, range: boolean) => [
  ...chosen(new Set(old), shown, last, id, range),
];

it("one is chosen or let go, and a range adds all between, in both directions", () => {
  expect(after([], undefined, "b", false)).toEqual(["b"]);
  expect(after(["b"], "b", "b", false)).toEqual([]);
  expect(after(["b"], "b", "d", true)).toEqual(["b", "c", "d"]);
  expect(after(["d"], "d", "b", true).sort()).toEqual(["b", "c", "d"]);
});

it("a range from one that is not shown any more is one", () => {
  expect(after(["z"], "z", "c", true)).toEqual(["z", "c"]);
  expect(after([], undefined, "c", true)).toEqual(["c"]);
});
