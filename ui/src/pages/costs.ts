import type { Schemas } from "../api/client";

type Attempt = Pick<Schemas["Attempt"], "agent_id" | "agent_cost" | "state">;

export interface AgentCost {
  agent: string;
  attempts: number;
  succeeded: number;
  /** Undefined if the agent never reported one. */
  cost?: number;
}

/** What each agent's attempts cost, the most expensive first. */
export function costsByAgent(attempts: Attempt[]): AgentCost[] {
  const rows = new Map<string, AgentCost>();
  for (const { agent_id: agent, agent_cost: cost, state } of attempts) {
    if (!agent) continue;
    const row = rows.get(agent) ?? { agent, attempts: 0, succeeded: 0 };
    row.attempts += 1;
    if (state === "done") row.succeeded += 1;
    if (cost !== null && cost !== undefined) row.cost = (row.cost ?? 0) + cost;
    rows.set(agent, row);
  }
  return [...rows.values()].sort((a, b) => (b.cost ?? -1) - (a.cost ?? -1));
}
