import { expect, test } from "vitest";
import { daysOf, mostExpensive, spentOf, sumOf } from "./spending";

const line = (day: string, cost: number, model_cost: number, reported_cost: number, hours = 1) => ({
  day,
  cost,
  model_cost,
  reported_cost,
  running_seconds: hours * 3600,
  cpu_seconds: hours * 2 * 3600,
  memory_gib_seconds: hours * 3600,
});

test("costs of sandboxes, the gateway and agents are added", () => {
  const lines = [line("2026-11-01", 1, 2, 4), line("2026-11-02", 0.5, 0, 0)];
  expect(sumOf(lines)).toEqual({ sandboxes: 1.5, gateway: 2, reported: 4, total: 7.5 });
  expect(mostExpensive([...lines].reverse())[0]?.day).toBe("2026-11-01");
});

test("example prices apply to sandbox time alone", () => {
  const spent = spentOf(line("2026-11-01", 0, 2, 0), true);
  expect(spent.sandboxes).toBeCloseTo(0.116);
  expect(spent.total).toBeCloseTo(2.116);
});

test("a day without use is a day too", () => {
  const days = daysOf([line("2026-11-02", 1, 0, 0, 3)], 3, false, Date.parse("2026-11-03T12:00:00Z"));
  expect(days.map(({ day, total, hours }) => [day, total, hours])).toEqual([
    ["2026-11-01", 0, 0],
    ["2026-11-02", 1, 3],
    ["2026-11-03", 0, 0],
  ]);
});
