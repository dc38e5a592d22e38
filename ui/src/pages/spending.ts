import type { Schemas } from "../api/client";

type Line = Pick<
  Schemas["UsageEntry"],
  "cost" | "model_cost" | "reported_cost" | "cpu_seconds" | "memory_gib_seconds" | "running_seconds" | "day"
>;

export interface Spent {
  sandboxes: number;
  gateway: number;
  reported: number;
  total: number;
}

/** Prices of no one in particular, of the size that clouds ask for sandboxes. */
export const EXAMPLE_PRICES = { cpu_hour: 0.05, gib_hour: 0.016 };

/** What a line cost, by source. `examples` puts prices on sandbox time that has none. */
export function spentOf(line: Line, examples = false): Spent {
  const example =
    (line.cpu_seconds * EXAMPLE_PRICES.cpu_hour + line.memory_gib_seconds * EXAMPLE_PRICES.gib_hour) / 3600;
  const sandboxes = examples ? example : line.cost;
  const [gateway, reported] = [line.model_cost ?? 0, line.reported_cost ?? 0];
  return { sandboxes, gateway, reported, total: sandboxes + gateway + reported };
}

export function sumOf(lines: Line[], examples = false): Spent {
  const none: Spent = { sandboxes: 0, gateway: 0, reported: 0, total: 0 };
  return lines.reduce((sum, line) => {
    const spent = spentOf(line, examples);
    return {
      sandboxes: sum.sandboxes + spent.sandboxes,
      gateway: sum.gateway + spent.gateway,
      reported: sum.reported + spent.reported,
      total: sum.total + spent.total,
    };
  }, none);
}

export interface Day extends Spent {
  day: string;
  hours: number;
}

/** Every day of the range up to today in UTC: one without use is a day too. */
export function daysOf(lines: Line[], range: number, examples = false, now = Date.now()): Day[] {
  const used = new Map(lines.map((line) => [line.day, line]));
  return Array.from({ length: range }, (_, at) => {
    const day = new Date(now - (range - 1 - at) * 86_400_000).toISOString().slice(0, 10);
    const line = used.get(day);
    const spent = line === undefined ? sumOf([]) : spentOf(line, examples);
    return { day, hours: (line?.running_seconds ?? 0) / 3600, ...spent };
  });
}

/** The lines that cost most come first; those without a cost by how long they ran. */
export function mostExpensive<L extends Line>(lines: L[], examples = false): L[] {
  const total = (line: L) => spentOf(line, examples).total;
  return [...lines].sort((a, b) => total(b) - total(a) || b.running_seconds - a.running_seconds);
}
