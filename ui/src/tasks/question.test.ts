import { expect, test } from "vitest";
import { isAsking, nextBudget } from "./asking";

test("the budget that is offered is more than what was spent", () => {
  for (const [spent, budget, offered] of [
    [1.02, 1, "2"],
    [0.0031, 0.003, "0.006"],
    [9, 1, "15"],
    [0, 0, "1"],
    [7.5, 7, "15"],
  ] as const) {
    expect(nextBudget({ spent, budget })).toBe(offered);
    expect(Number(nextBudget({ spent, budget }))).toBeGreaterThan(spent);
  }
});

test("only a task that waits for an answer asks for one", () => {
  const of = (code: string) => isAsking({ needs_attention: { code, message: "", step: null } });
  expect([of("budget_wanted"), of("interrupted"), of("check_failed")]).toEqual([true, true, false]);
  expect(isAsking({ needs_attention: null })).toBe(false);
});
