// The steps of an attempt in words, with what came of them: a check that ran to its end has not passed by that.
import type { Schemas } from "../api/client";

type Step = Pick<Schemas["RunStep"], "name" | "state">;
type Failure = { code: string; step?: string | null } | null | undefined;

const NAMES: Record<string, string> = {
  prepare: "Prepare",
  sandbox: "Create the sandbox",
  clone: "Clone",
  branch: "Create the branch",
  check: "Check",
  commit: "Commit",
  push: "Push",
  "push-aside": "Push to a separate branch",
  pull: "Open the pull request",
  finish: "Finish",
};

export function nameOfStep(name: string): string {
  const [, kind, number] = /^(agent|check|hear|soon|answer)-(\d+)$/.exec(name) ?? [];
  if (kind === "soon" || kind === "answer") return "Waited for a person";
  if (kind === "agent") return `Agent, turn ${number}`;
  if (kind === "check") return `Check ${number}`;
  return NAMES[name] ?? name.replaceAll("-", " ");
}

/** Between turns the server looks for comments; that is no work that people wait for. */
export const isShown = (step: Step) => !/^(hear|heed|ask|rest|settle|wake|room)-/.test(step.name);

const OF_AGENT = [
  "agent_failed",
  "budget_exceeded",
  "model_key_refused",
  "model_unavailable",
  "no_changes",
  "timed_out",
  "not_started",
];

/** The names of steps that did what they should, and found that the attempt failed. */
export function failedSteps(steps: Step[], failure: Failure): Set<string> {
  if (!failure) return new Set();
  const last = (kind: string) => steps.findLast((step) => step.name === kind || step.name.startsWith(`${kind}-`))?.name;
  const names = [
    failure.step ?? undefined,
    failure.code === "check_failed" ? last("check") : undefined,
    OF_AGENT.includes(failure.code) ? last("agent") : undefined,
  ];
  return new Set(names.filter((name) => name !== undefined));
}
