import { expect, test } from "vitest";
import { parsePatch } from "./patch";
import { pairsOf, wordDiff } from "./words";

test("only the words that differ are marked, and nothing if lines have little in common", () => {
  const [before, after] = wordDiff("    return float(number), currency", "    return Decimal(number), currency");
  expect(before.filter((part) => part.changed).map((part) => part.text)).toEqual(["float"]);
  expect(after.filter((part) => part.changed).map((part) => part.text)).toEqual(["Decimal"]);
  expect(wordDiff("one thing", "quite other words")[0].some((part) => part.changed)).toBe(false);
  for (const [a, b] of [
    ["", "x"],
    ["a a", "a"],
    ["x", "x"],
  ] as const)
    expect(wordDiff(a, b).map((parts) => parts.map((part) => part.text).join(""))).toEqual([a, b]);
});

test("lines that replace others stand next to them", () => {
  const [file] = parsePatch("@@ -1,4 +1,4 @@\n a\n-b\n-c\n+B\n d\n+e\n");
  const pairs = pairsOf(file?.hunks[0] ?? { head: "", lines: [], old: 1, now: 1 });
  expect(pairs.map(({ left, right }) => [left?.text, right?.text])).toEqual([
    ["a", "a"],
    ["b", "B"],
    ["c", undefined],
    ["d", "d"],
    [undefined, "e"],
  ]);
});
