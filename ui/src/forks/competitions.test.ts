import { expect, test } from "vitest";
import { costOf, named, toneOf, totalCost, type Entry } from "./competitions";

test("reasons name who they compare with", () => {
  const labels = new Map([
    [1, "careful"],
    [12, "quick"],
  ]);
  expect(named("before entry 12: its checks passed", labels)).toBe("before quick: its checks passed");
  expect(named("behind entry 3, and entry 1", labels)).toBe("behind entry 3, and careful");
});

test("costs are those of the sandbox and of the agent", () => {
  expect(costOf({ cost: 0, agent_cost: 0.187 })).toBe(0.187);
  expect(costOf({ cost: 0.5, agent_cost: null })).toBe(0.5);
  expect(costOf({ cost: null, agent_cost: undefined })).toBeUndefined();
  const entries = [{ agent_cost: 0.25 }, { agent_cost: null }, { agent_cost: 0.5 }] as Entry[];
  expect(totalCost({ cost: 0.25, entries })).toBe(1);
});

test("an entry whose check failed is never green", () => {
  const check = (passed: boolean) => ({ passed }) as Entry["check"];
  expect(toneOf({ state: "done", check: check(true) })).toBe("ok");
  expect(toneOf({ state: "done", check: null })).toBe("ok");
  expect(toneOf({ state: "done", check: check(false) })).toBe("bad");
  expect(toneOf({ state: "working", check: check(false) })).toBe("warn");
});
