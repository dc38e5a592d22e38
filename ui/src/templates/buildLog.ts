// The log of a build as its steps: which ran, which were cached, how long each took, and where it failed.

export interface LogLine {
  at: string;
  level: string;
  /** `base`, `finalize`, or the number of the step from 1. */
  step?: string | null;
  message: string;
}

export type StepState = "running" | "done" | "cached" | "failed" | "stopped";

export interface Step {
  id: string;
  /** What it does: `RUN npm ci`. */
  title: string;
  /** Which it is, of how many; undefined for what is not a step of the Dockerfile. */
  place?: string;
  state: StepState;
  lines: LogLine[];
  begunAt: string;
  /** When the next one began, or the build ended; undefined while it runs. */
  endedAt?: string;
}

export interface BuildEnd {
  /** `waiting`, `building`, `ready` or `error`. */
  state: string;
  endedAt?: string | null;
  failedStep?: string | null;
}

const HEAD = /^\[(\d+\/\d+)\] (CACHED )?(.*)$/s;

const NAMES: Record<string, string> = { base: "Base", finalize: "Finish" };

/** Lines arrive in the order in which they were written; a step may come again after a restart of the server. */
export function toSteps(lines: LogLine[], end: BuildEnd): Step[] {
  const steps: Step[] = [];
  const byId = new Map<string, Step>();
  let current: Step | undefined;
  for (const line of lines) {
    const id = line.step ?? current?.id ?? "base";
    const head = HEAD.exec(line.message);
    if (current?.id !== id) {
      if (current !== undefined) current.endedAt = line.at;
      const known = byId.get(id);
      if (known === undefined) {
        current = { id, title: NAMES[id] ?? `Step ${id}`, state: "running", lines: [], begunAt: line.at };
        byId.set(id, current);
        steps.push(current);
      } else {
        current = known;
        current.endedAt = undefined;
      }
    }
    if (current === undefined) continue;
    if (head !== null) {
      current.place = head[1];
      current.title = head[3] ?? current.title;
      if (head[2] !== undefined) current.state = "cached";
    } else {
      current.lines.push(line);
    }
  }
  settle(steps, current, end);
  return steps;
}

function settle(steps: Step[], last: Step | undefined, { state, endedAt, failedStep }: BuildEnd) {
  const over = state === "ready" || state === "error";
  if (last !== undefined && over) last.endedAt ??= endedAt ?? last.lines.at(-1)?.at ?? last.begunAt;
  for (const step of steps) {
    if (step.state === "cached") continue;
    if (step !== last) step.state = "done";
    else if (state === "ready") step.state = "done";
    // Without the name of a step, it was cancelled where it was.
    else if (state === "error") step.state = failedStep === null || failedStep === undefined ? "stopped" : "done";
  }
  if (state !== "error" || failedStep === null || failedStep === undefined) return;
  const failed = steps.find(({ id }) => id === failedStep);
  if (failed !== undefined) failed.state = "failed";
}

/** How long a step took, in milliseconds; undefined while it runs. */
export function tookMs({ begunAt, endedAt, state }: Step): number | undefined {
  if (state === "cached" || endedAt === undefined) return undefined;
  return Math.max(0, Date.parse(endedAt) - Date.parse(begunAt));
}

/** The steps that people want to see: the one that runs, or the one that failed. */
export function openByDefault(steps: Step[]): Set<string> {
  return new Set(steps.filter(({ state }) => ["running", "failed", "stopped"].includes(state)).map(({ id }) => id));
}
