import { expect, test } from "vitest";
import { noticeOf } from "./Attention";

const event = (kind: string, payload: object) => noticeOf({ kind, subject: "t1", payload } as never);

test("people are told why a task needs them, and of success, but not of their own moves", () => {
  const attention = { code: "check_failed", message: "exit code 1" };
  expect(event("task.needs_attention", { attention })).toEqual({
    kind: "needs",
    about: { task: "t1" },
    why: "exit code 1",
  });
  expect(event("task.moved", { to: "in_review", actor: null })?.kind).toBe("ready");
  expect(event("task.moved", { to: "in_review", actor: "key:ada" })).toBeUndefined();
  expect(event("task.moved", { to: "todo", actor: null })).toBeUndefined();
  expect(event("competition.state", { to: "waiting", competition: "f1" })).toMatchObject({
    kind: "needs",
    about: { fork: "f1" },
  });
});
