import { expect, test } from "vitest";
import { costsByAgent } from "./costs";

test("costs are added by agent, and one that reports none is not free", () => {
  const attempt = (agent_id: string, agent_cost: number | null, state = "done") => ({ agent_id, agent_cost, state });
  const rows = costsByAgent([attempt("a", 0.25), attempt("b", null), attempt("a", 0.5, "failed"), attempt("c", 2)]);
  expect(rows).toEqual([
    { agent: "c", attempts: 1, succeeded: 1, cost: 2 },
    { agent: "a", attempts: 2, succeeded: 1, cost: 0.75 },
    { agent: "b", attempts: 1, succeeded: 1 },
  ]);
});
