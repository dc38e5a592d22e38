import { expect, test } from "vitest";
import { failedSince, successByAgent } from "./costs";

const attempt = (agent_id: string, state: string, model: string | null = null, ended_at: string | null = null) => ({
  agent_id,
  state: state as "done",
  model,
  ended_at,
});

test("success is counted by agent and model, without what was cancelled or still runs", () => {
  const rows = successByAgent([
    attempt("a", "done", "opus"),
    attempt("a", "failed", "opus"),
    attempt("a", "cancelled", "opus"),
    attempt("a", "done", "haiku"),
    attempt("b", "running"),
  ]);
  expect(rows).toEqual([
    { agent: "a", model: "opus", ended: 2, succeeded: 1 },
    { agent: "a", model: "haiku", ended: 1, succeeded: 1 },
    { agent: "b", ended: 0, succeeded: 0 },
  ]);
});

test("failed attempts are errors too", () => {
  const rows = [
    attempt("a", "failed", null, "2026-11-02T00:00:00Z"),
    attempt("a", "stuck", null, "2026-11-01T00:00:00Z"),
  ];
  expect(
    failedSince([...rows, attempt("a", "done", null, "2026-11-02T00:00:00Z")], Date.parse("2026-11-01T12:00:00Z")),
  ).toBe(1);
});
