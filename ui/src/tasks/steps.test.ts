import { expect, test } from "vitest";
import { failedSteps, nameOfStep } from "./steps";

const steps = ["sandbox", "agent-1", "hear-1", "agent-2", "check", "push"].map((name) => ({
  name,
  state: "done" as const,
}));

test("a step that ran to its end and found a failure is one that failed", () => {
  expect([...failedSteps(steps, { code: "check_failed" })]).toEqual(["check"]);
  expect([...failedSteps(steps, { code: "agent_failed" })]).toEqual(["agent-2"]);
  expect([...failedSteps(steps, { code: "push_rejected", step: "push" })]).toEqual(["push"]);
  expect(failedSteps(steps, undefined).size).toBe(0);
});

test("steps have names that people know", () => {
  expect(["agent-2", "pull", "check-2", "other-thing"].map(nameOfStep)).toEqual([
    "Agent, turn 2",
    "Open the pull request",
    "Check 2",
    "other thing",
  ]);
});
