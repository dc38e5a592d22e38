import type { Schemas } from "../api/client";

type Attempt = Pick<Schemas["Attempt"], "agent_id" | "model" | "state" | "ended_at">;

export interface Success {
  agent: string;
  model?: string;
  /** Attempts that came to an end: those that were cancelled tell nothing of the agent. */
  ended: number;
  succeeded: number;
}

/** How each agent's attempts went, by model, those with the most attempts first. */
export function successByAgent(attempts: Attempt[]): Success[] {
  const rows = new Map<string, Success>();
  for (const { agent_id: agent, model, state } of attempts) {
    if (!agent) continue;
    const key = `${agent} ${model ?? ""}`;
    const row = rows.get(key) ?? { agent, ...(model ? { model } : {}), ended: 0, succeeded: 0 };
    if (["done", "failed", "stuck"].includes(state)) row.ended += 1;
    if (state === "done") row.succeeded += 1;
    rows.set(key, row);
  }
  return [...rows.values()].sort((a, b) => b.ended - a.ended);
}

/** How many attempts failed since then. */
export function failedSince(attempts: Attempt[], since_ms: number): number {
  const isFailed = ({ state, ended_at: ended }: Attempt) =>
    ["failed", "stuck"].includes(state) && ended !== null && ended !== undefined && Date.parse(ended) > since_ms;
  return attempts.filter(isFailed).length;
}
