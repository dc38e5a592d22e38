import { expect, test } from "vitest";
import { windowOf } from "./rows";

test("what is seen of a long list, and a little around it", () => {
  expect(windowOf(0, 100, 20, 1_000_000, 3)).toEqual({ first: 0, end: 8 });
  expect(windowOf(19_999_900, 100, 20, 1_000_000, 3)).toEqual({ first: 999_992, end: 1_000_000 });
  expect(windowOf(1010, 100, 20, 1000, 0)).toEqual({ first: 50, end: 56 });
});

test("a list that has become shorter shows nothing beyond its end", () => {
  expect(windowOf(5000, 100, 20, 10, 3)).toEqual({ first: 10, end: 10 });
  expect(windowOf(0, 100, 20, 0, 3)).toEqual({ first: 0, end: 0 });
});
