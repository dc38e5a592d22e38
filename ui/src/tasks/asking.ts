// Attempts that wait for a person's answer.
import type { Task } from "./tasks";

const ASKING = ["budget_wanted", "interrupted"];

/** Whether its attempt waits for an answer. */
export function isAsking(task: Pick<Task, "needs_attention">): boolean {
  return ASKING.includes(task.needs_attention?.code ?? "");
}

/** The budget to offer: twice what there was, and more than was spent, in steps that people like. */
export function nextBudget({ spent, budget }: { spent?: number | null; budget?: number | null }): string {
  const wanted = Math.max(2 * (budget ?? 0), 1.5 * (spent ?? 0));
  if (wanted <= 0) return "1";
  const step = 10 ** Math.floor(Math.log10(wanted)) / 2;
  return String(Number((Math.ceil(wanted / step - 1e-9) * step).toPrecision(6)));
}
