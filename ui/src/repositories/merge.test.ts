import { expect, it } from "vitest";
import { conflictPrompt } from "./Merge";
import { threadsOf, type Remark } from "./threads";

it("tells an agent of the base, its branch and the files, which cannot end the list", () => {
  const told = conflictPrompt({ number: 7, base: "main", head: "task/x" }, ["a.rs", "b`\n- c"]);
  expect(told).toContain("`git merge origin/main`");
  expect(told).toContain("- `a.rs`");
  expect(told).not.toContain("b`");
  expect(conflictPrompt({ number: 7, base: "main", head: "x" }, [])).not.toContain("files in conflict");
});

it("puts replies under what they answer, also if that is gone", () => {
  const remark = (id: string, to?: string) => ({ id, in_reply_to: to ?? null }) as Remark;
  const threads = threadsOf([remark("a"), remark("b"), remark("c", "a"), remark("d", "gone"), remark("e", "gone")]);
  expect(threads.map(({ first, replies }) => [first.id, ...replies.map(({ id }) => id)])).toEqual([
    ["a", "c"],
    ["b"],
    ["d", "e"],
  ]);
});
