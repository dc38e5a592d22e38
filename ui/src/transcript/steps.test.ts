import { expect, it } from "vitest";
import type { Entry } from "./entries";
import { isQuiet, summaryOf, threadRows } from "./steps";

let sequence = 0;
const entry = (kind: string, more: object = {}): Entry =>
  ({
    kind,
    sequence: ++sequence,
    attempt: 1,
    turn: 1,
    at: "2026-01-01T00:00:00Z",
    updated_at: "2026-01-01T00:01:00Z",
    state: "done",
    text: { text: "" },
    ...more,
  }) as unknown as Entry;
const many = (count: number) => Array.from({ length: count }, (_, at) => entry(at % 2 === 0 ? "command" : "tool"));
const told = (entries: Entry[], folds = true) =>
  threadRows(entries, { turns: true, folds }).map((row) =>
    "heading" in row ? row.heading : "steps" in row ? `(${row.steps.length})` : row.entry.kind,
  );

it("folds long runs of quiet steps, but not the newest, and none while one searches", () => {
  const entries = [entry("message"), ...many(7), entry("message"), ...many(3), entry("message"), ...many(9)];
  expect(told(entries).slice(0, 8)).toEqual([
    "Attempt 1, turn 1",
    "message",
    "(7)",
    "message",
    "command",
    "tool",
    "command",
    "message",
  ]);
  expect(told(entries)).toHaveLength(8 + 9);
  expect(told(entries, false).filter((row) => row.startsWith("("))).toEqual([]);
});

it("leaves what failed, runs or was changed in sight", () => {
  expect(isQuiet(entry("command", { exit_code: 1 }))).toBe(false);
  expect(isQuiet(entry("tool", { state: "failed" }))).toBe(false);
  expect(isQuiet(entry("command", { state: "running" }))).toBe(false);
  expect(isQuiet(entry("edit"))).toBe(false);
  expect(isQuiet(entry("error"))).toBe(false);
  const broken = [...many(6), entry("command", { exit_code: 2 }), ...many(6), entry("message")];
  expect(told(broken)).toEqual(["Attempt 1, turn 1", "(6)", "command", "(6)", "message"]);
});

it("says what was folded, and how long a turn took", () => {
  expect(summaryOf([...many(3), entry("thinking")])).toBe("2 commands, 1 tool call, 1 thought");
  const [head] = threadRows([entry("message"), entry("message", { turn: 2 })], { turns: true, folds: true });
  expect(head).toMatchObject({ took: 60_000 });
});
