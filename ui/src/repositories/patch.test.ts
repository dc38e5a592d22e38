import { describe, expect, it } from "vitest";
import { parsePatch, unquote } from "./patch";

const PATCH = `diff --git a/src/a.rs b/src/a.rs
index 1..2 100644
--- a/src/a.rs
+++ b/src/a.rs
@@ -1,3 +1,3 @@ fn main
 one
--- two
+++ 2
 three
@@ -10 +10,2 @@
-ten
+TEN
+eleven
\\ No newline at end of file
diff --git "a/\\303\\274.txt" "b/\\303\\274.txt"
new file mode 100644
--- /dev/null
+++ "b/\\303\\274.txt"
@@ -0,0 +1 @@
+x
diff --git a/old b/new
similarity index 100%
rename from old
rename to new
`;

describe("parsePatch", () => {
  it("numbers lines on both sides, also where they look like headers", () => {
    const [first] = parsePatch(PATCH);
    expect(first?.path).toBe("src/a.rs");
    expect(first?.hunks[0]?.lines).toEqual([
      { kind: "context", text: "one", old: 1, now: 1 },
      { kind: "removed", text: "-- two", old: 2 },
      { kind: "added", text: "++ 2", now: 2 },
      { kind: "context", text: "three", old: 3, now: 3 },
    ]);
    expect(first?.hunks[1]?.lines.map((line) => line.kind)).toEqual(["removed", "added", "added", "note"]);
  });
  it("knows files by their names, however they are written", () => {
    expect(parsePatch(PATCH).map((file) => file.path)).toEqual(["src/a.rs", "ü.txt", "new"]);
    expect(unquote('"a\\"\\t\\\\b"')).toBe('a"\t\\b');
  });
});

it("hunks without a header are a file without a name", () => {
  const [file] = parsePatch("@@ -1 +1 @@\n-old\n+new\n");
  expect([file?.path, file?.hunks[0]?.lines.map((line) => line.text)]).toEqual(["", ["old", "new"]]);
});
