import { expect, it } from "vitest";
import { readViews, sameView, withView } from "./savedViews";

it("what is stored and no view is left out, and hostile fields of a view too", () => {
  expect(readViews(null)).toEqual([]);
  expect(readViews("{oops")).toEqual([]);
  expect(readViews('[1,null,{"name":"x"},{"name":"","search":{}}]')).toEqual([]);
  const stored = [{ name: "mine", search: { q: "vat", sort: "cost", task: "abc", group: "evil", wip: 2 } }];
  expect(readViews(JSON.stringify(stored))).toEqual([{ name: "mine", search: { q: "vat", sort: "cost", wip: 2 } }]);
});

it("a view is saved without the task that is open, in place of one of its name", () => {
  const first = withView([], "a", { q: "one", task: "t", new: true });
  expect(first).toEqual([{ name: "a", search: { q: "one" } }]);
  expect(withView(first, "a", { list: true })).toEqual([{ name: "a", search: { list: true } }]);
  expect(sameView({ q: "a", task: "x" }, { q: "a", list: undefined })).toBe(true);
  expect(sameView({ q: "a" }, { q: "a", list: true })).toBe(false);
});
