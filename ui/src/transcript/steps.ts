// Rows of a conversation: headings where a turn begins, entries, and quiet steps in one row.
import type { Entry } from "./entries";

export type ThreadRow =
  { key: string; heading: string; took?: number } | { key: string; entry: Entry } | { key: string; steps: Entry[] };

/** Fewer steps in a row are shown one by one. */
export const FOLDED_FROM = 6;

/** Steps that went as they should: nobody has to read them one by one. */
export function isQuiet(entry: Entry): boolean {
  switch (entry.kind) {
    case "thinking":
    case "retry":
      return true;
    case "tool":
      return entry.state === "done";
    case "command":
      return entry.state === "done" && (entry.exit_code ?? 0) === 0;
    default:
      return false;
  }
}

const NAMES: [Entry["kind"], string, string][] = [
  ["command", "command", "commands"],
  ["tool", "tool call", "tool calls"],
  ["thinking", "thought", "thoughts"],
  ["retry", "retry", "retries"],
];

/** `4 commands, 3 tool calls` */
export function summaryOf(steps: Entry[]): string {
  return NAMES.map(([kind, one, many]) => {
    const count = steps.filter((step) => step.kind === kind).length;
    return count === 0 ? undefined : `${count} ${count === 1 ? one : many}`;
  })
    .filter(Boolean)
    .join(", ");
}

/**
 * `folds` puts long runs of quiet steps into one row each, but not the newest: it is what the agent does now.
 */
export function threadRows(entries: Entry[], { turns, folds }: { turns: boolean; folds: boolean }): ThreadRow[] {
  const rows: ThreadRow[] = [];
  let turn = "";
  let quiet: Entry[] = [];
  let heading: { key: string; heading: string; took?: number } | undefined;
  let began = 0;
  const flush = (last: boolean) => {
    if (!last && quiet.length >= FOLDED_FROM) rows.push({ key: `steps-${quiet[0]?.sequence}`, steps: quiet });
    else rows.push(...quiet.map((entry) => ({ key: String(entry.sequence), entry })));
    quiet = [];
  };
  for (const entry of entries) {
    const here = `${entry.attempt}.${entry.turn}`;
    if (turns && here !== turn) {
      flush(false);
      began = Date.parse(entry.at);
      heading = { key: `turn-${here}`, heading: `Attempt ${entry.attempt}, turn ${entry.turn}` };
      rows.push(heading);
    }
    turn = here;
    if (heading !== undefined) heading.took = Math.max(heading.took ?? 0, Date.parse(entry.updated_at) - began);
    if (folds && isQuiet(entry)) quiet.push(entry);
    else {
      flush(false);
      rows.push({ key: String(entry.sequence), entry });
    }
  }
  flush(true);
  return rows;
}
