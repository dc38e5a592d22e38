// A notebook's cells: read from the server's record, and changed by what a call tells while it runs.
import type { CodeError, Result } from "./results";

export type Output =
  | { kind: "stdout" | "stderr"; text: string }
  | { kind: "result"; result: Result }
  | { kind: "error"; error: CodeError }
  /** Words of ours: what was cut, or why the call ended. */
  | { kind: "note"; text: string };

export type Phase = "new" | "running" | "done" | "failed" | "stopped";

export interface Cell {
  key: string;
  language: string;
  /** The context it ran in, if that is not the language's default one. */
  context?: string;
  source: string;
  outputs: Output[];
  phase: Phase;
  count?: number;
  execution?: string;
  durationMs?: number;
  /** It ran in the sandbox that this one was forked from. */
  inherited?: boolean;
}

export const LANGUAGES = ["python", "javascript", "typescript", "r", "bash", "java"] as const;

/** Most that a cell shows: text of one stream together, and results. The record on the server has more. */
const MOST_TEXT = 400_000;
const MOST_OUTPUTS = 200;

let made = 0;

export function newCell(language: string, source = "", context?: string): Cell {
  made += 1;
  return { key: `cell-${made}`, language, source, context, outputs: [], phase: "new" };
}

/** Adds output. Text of the same stream goes on where it was. */
export function withOutput(outputs: Output[], more: Output): Output[] {
  const last = outputs.at(-1);
  if ((more.kind === "stdout" || more.kind === "stderr") && last?.kind === more.kind) {
    if (last.text.length >= MOST_TEXT) return outputs;
    const text = last.text + more.text;
    const whole =
      text.length <= MOST_TEXT ? text : `${text.slice(0, MOST_TEXT)}\n[cut here; all of it is in the logs]\n`;
    return [...outputs.slice(0, -1), { kind: more.kind, text: whole }];
  }
  if (outputs.length >= MOST_OUTPUTS && more.kind !== "error" && more.kind !== "note") {
    const told = last?.kind === "note";
    return told ? outputs : [...outputs, { kind: "note", text: "There is more than is shown here." }];
  }
  return [...outputs, more];
}

type Told = Record<string, unknown>;

function word(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function errorOf(told: Told): CodeError {
  return { name: word(told.name), value: word(told.value), traceback: word(told.traceback) };
}

/** What an event of a call makes of its cell. */
export function withEvent(cell: Cell, event: string, told: Told): Cell {
  const add = (output: Output): Cell => ({ ...cell, outputs: withOutput(cell.outputs, output) });
  switch (event) {
    case "start":
      return { ...cell, execution: word(told.execution_id) };
    case "stdout":
    case "stderr":
      return add({ kind: event, text: word(told.data) });
    case "result":
      return add({ kind: "result", result: told });
    case "error":
      return add({ kind: "error", error: errorOf(told) });
    case "end":
      return ended(cell, told);
    case "failed": {
      const hint = word(told.hint);
      const failed = add({ kind: "note", text: `${word(told.message)}${hint === "" ? "" : ` (${hint})`}` });
      return { ...failed, phase: "failed" };
    }
    default:
      return cell;
  }
}

function ended(cell: Cell, told: Told): Cell {
  const notes: string[] = [];
  if (told.timed_out === true) notes.push("It was interrupted: its time was over.");
  const dropped = typeof told.dropped_bytes === "number" ? told.dropped_bytes : 0;
  if (told.truncated === true)
    notes.push(`${dropped} bytes of output were more than a call may have, and are left out.`);
  return {
    ...cell,
    phase: told.failed === true || told.timed_out === true ? "failed" : "done",
    count: typeof told.execution_count === "number" ? told.execution_count : cell.count,
    durationMs: typeof told.duration_ms === "number" ? told.duration_ms : undefined,
    outputs: notes.reduce((all, text) => withOutput(all, { kind: "note", text }), cell.outputs),
  };
}

/** A cell that is about to run. */
export function started(cell: Cell): Cell {
  const { key, language, context, source } = cell;
  return { key, language, context, source, outputs: [], phase: "running" };
}

const MIME: Record<string, keyof Result> = {
  "text/plain": "text",
  "text/html": "html",
  "text/markdown": "markdown",
  "image/svg+xml": "svg",
  "image/png": "png",
  "image/jpeg": "jpeg",
  "application/pdf": "pdf",
  "text/latex": "latex",
  "application/javascript": "javascript",
  "application/json": "json",
  "application/vnd.e2b.data+json": "data",
  "application/vnd.e2b.chart+json": "chart",
};

/** Text in a notebook may be a list of lines. */
function joined(text: unknown, between = ""): string {
  return Array.isArray(text) ? text.map(word).join(between) : word(text);
}

function objects(value: unknown): Told[] {
  return Array.isArray(value) ? value.filter((one): one is Told => typeof one === "object" && one !== null) : [];
}

function outputOf(told: Told): Output | undefined {
  switch (told.output_type) {
    case "stream":
      return { kind: told.name === "stderr" ? "stderr" : "stdout", text: joined(told.text) };
    case "error":
      return {
        kind: "error",
        error: { name: word(told.ename), value: word(told.evalue), traceback: joined(told.traceback, "\n") },
      };
    case "execute_result":
    case "display_data": {
      const data = (typeof told.data === "object" && told.data !== null ? told.data : {}) as Told;
      const extra: Told = {};
      const result: Told = { extra, is_main_result: told.output_type === "execute_result" };
      for (const [kind, value] of Object.entries(data)) {
        const field = MIME[kind];
        if (field === undefined) extra[kind] = value;
        else result[field] = ["json", "data", "chart"].includes(field) ? value : joined(value);
      }
      return { kind: "result", result: result };
    }
    default:
      return undefined;
  }
}

/** Words for what the record says of code that did not come to its own end. */
const UNENDED: Record<string, string> = {
  running: "It was still running when this was read.",
  lost: "It was cut off: the server or the sandbox ended while it ran.",
};

/** The cells of a notebook as the server exports it. */
export function fromNotebook(notebook: unknown): Cell[] {
  const { cells } = (typeof notebook === "object" && notebook !== null ? notebook : {}) as Told;
  return objects(cells)
    .filter((cell) => cell.cell_type === "code")
    .map((cell) => {
      const about = ((cell.metadata as Told | undefined)?.coffer ?? {}) as Told;
      const context = word(about.context_id);
      const read = newCell(word(about.language) || "python", joined(cell.source), context === "" ? undefined : context);
      const outputs = objects(cell.outputs).map(outputOf);
      read.outputs = outputs.filter((output) => output !== undefined).reduce(withOutput, [] as Output[]);
      const failed = read.outputs.some((output) => output.kind === "error");
      const unended = UNENDED[word(about.state)];
      if (unended !== undefined) read.outputs = withOutput(read.outputs, { kind: "note", text: unended });
      read.phase = failed ? "failed" : unended === undefined ? "done" : "stopped";
      read.execution = word(about.execution_id);
      read.count = typeof cell.execution_count === "number" ? cell.execution_count : undefined;
      return read;
    });
}

/** Cells up to the one of this execution, as those of a sandbox that was forked there. */
export function inheritedUntil(cells: Cell[], execution: string): Cell[] {
  const at = cells.findIndex((cell) => cell.execution === execution);
  return cells.slice(0, at + 1).map((cell) => ({ ...cell, inherited: true }));
}
