// States of templates and builds as people read them.
import type { Tone } from "../ui/Badge";

const STATES: Record<string, [string, Tone]> = {
  waiting: ["waiting for files", "warn"],
  building: ["building", "info"],
  ready: ["ready", "ok"],
  error: ["failed", "bad"],
  not_built: ["not built", "dim"],
};

export function stateWords(state: string): [string, Tone] {
  return STATES[state] ?? [state.replaceAll("_", " "), "dim"];
}

export const isOver = (state: string) => !["waiting", "building"].includes(state);
