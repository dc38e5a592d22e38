import { expect, test } from "vitest";
import { checksOf, isPlumbing, turnsOf, type Execution } from "./executions";

const ran = (id: string, command: string, at: number) =>
  ({ id, command, started_at: `2026-01-01T00:00:0${at}Z`, source: "api", actor: null }) as Execution;
const all = [
  ran("e5", "git -C shop push", 5),
  ran("e4", "/bin/bash -l -c make test", 4),
  ran("e3", "claude -p two", 3),
  ran("e2", "git -C shop status", 2),
  ran("e1", "claude -p one", 1),
];

test("turns and checks are found among what ran, and the server's own git is known", () => {
  expect(turnsOf(all, "e3").map(({ id }) => id)).toEqual(["e1", "e3"]);
  expect(checksOf(all, "make test").map(({ id }) => id)).toEqual(["e4"]);
  expect(checksOf(all, "make")).toEqual([]);
  expect(all.filter(isPlumbing).map(({ id }) => id)).toEqual(["e5", "e2"]);
});
