import type { ReactNode } from "react";
import { classes } from "./classes";

export type Tone = "ok" | "warn" | "bad" | "info" | "dim";

const TONES: Record<Tone, string> = {
  ok: "bg-ok-soft text-ok",
  warn: "bg-warn-soft text-warn",
  bad: "bg-bad-soft text-bad",
  info: "bg-info-soft text-info",
  dim: "bg-raised text-dim",
};

export function Badge({ tone = "dim", children, className }: { tone?: Tone; children: ReactNode; className?: string }) {
  return (
    <span
      className={classes(
        "inline-flex items-center gap-1.5 rounded-full px-2 py-0.5 text-xs font-medium whitespace-nowrap",
        TONES[tone],
        className,
      )}
    >
      {children}
    </span>
  );
}

const STATES: Record<string, Tone> = {
  running: "ok",
  paused: "info",
  creating: "info",
  pausing: "info",
  resuming: "info",
  terminated: "dim",
  error: "bad",
  failed: "bad",
  exited: "dim",
  lost: "bad",
};

/** The state by word and dot: colour alone would tell nothing to some. */
export function StateBadge({ state }: { state: string }) {
  const moving = ["creating", "pausing", "resuming"].includes(state);
  return (
    <Badge tone={STATES[state] ?? "dim"}>
      <span aria-hidden className={classes("size-1.5 rounded-full bg-current", moving && "animate-pulse")} />
      {state}
    </Badge>
  );
}
