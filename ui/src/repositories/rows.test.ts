import { expect, it } from "vitest";
import { parsePatch } from "./patch";
import { expanded, groupsOf, rowOfPlace, rowsOf, type Row } from "./rows";

const PATCH = `diff --git a/a b/a
--- a/a
+++ b/a
@@ -4,3 +4,4 @@ fn one
 four
-five
+FIVE
+five and a half
 six
@@ -20 +21 @@
-twenty
+TWENTY
`;
const [file] = parsePatch(PATCH);
if (file === undefined) throw new Error("no file");
const text = Array.from({ length: 30 }, (_, at) => `line ${at + 1}`);
const told = (rows: Row[]) =>
  rows.map((row) => {
    if (row.kind === "gap") return `~${row.hidden ?? "?"}`;
    if (row.kind === "line") return `${row.line.old ?? ""}|${row.line.now ?? ""}`;
    return row.kind === "pair" ? `${row.left?.old ?? ""}/${row.right?.now ?? ""}` : "note";
  });

it("has rows for lines and the gaps before, between and after them", () => {
  expect(told(rowsOf(file))).toEqual(["~3", "4|4", "5|", "|5", "|6", "6|7", "~13", "20|", "|21"]);
  expect(told(rowsOf(file, { expands: true })).at(-1)).toBe("~?");
  expect(told(rowsOf(file, { expands: true, text })).at(-1)).toBe("~9");
  expect(told(rowsOf(file, { split: true }))).toEqual(["~3", "4/4", "5/5", "/6", "6/7", "~13", "20/21"]);
});

it("shows more of a gap, with the numbers of both sides, until nothing is hidden", () => {
  let shown = expanded(new Map(), 0, "bottom");
  expect(told(rowsOf(file, { expands: true, text, shown })).slice(0, 4)).toEqual(["1|1", "2|2", "3|3", "4|4"]);
  shown = expanded(new Map(), 1, "all");
  const rows = rowsOf(file, { expands: true, text, shown });
  expect(told(rows).slice(5, 9)).toEqual(["|6".replace("|6", "6|7"), "7|8", "8|9", "9|10"].slice(0, 4));
  expect(rows.filter((row) => row.kind === "gap")).toHaveLength(2);
  shown = expanded(new Map(), 2, "top");
  expect(told(rowsOf(file, { expands: true, text, shown })).at(-1)).toBe("29|30");
  // Nothing is made up before the file is there.
  expect(told(rowsOf(file, { expands: true, shown })).at(-1)).toBe("~?");
});

it("puts together what a reader of the language needs", () => {
  const { of, groups } = groupsOf(rowsOf(file));
  expect(groups).toEqual([["four", "FIVE", "five and a half", "six"], ["four", "five", "six"], ["TWENTY"], ["twenty"]]);
  expect(of[1]?.[1]?.kind).toBe("removed");
});

it("finds the row of a line", () => {
  const rows = rowsOf(file);
  expect([rowOfPlace(rows, "R6"), rowOfPlace(rows, "L5"), rowOfPlace(rows, "R99")]).toEqual([4, 2, -1]);
});
