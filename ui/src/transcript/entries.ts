// Entries of a transcript as the API has them, and how a growing list of them is kept.

export interface BoundedText {
  text: string;
  cut_bytes?: number;
  end?: string;
}

export type CallState = "running" | "done" | "failed" | "unknown";

export type EntryBody =
  | { kind: "person"; author: string; text: BoundedText; file?: string; line?: number }
  | { kind: "prompt" | "message" | "thinking" | "error" | "output"; text: BoundedText }
  | { kind: "started"; model?: string; session?: string }
  | { kind: "tool"; name: string; arguments: BoundedText; state: CallState; result?: BoundedText }
  | { kind: "command"; command: BoundedText; state: CallState; exit_code?: number; output?: BoundedText }
  | {
      kind: "edit";
      path: string;
      edit: "written" | "changed" | "deleted";
      state: CallState;
      diff?: BoundedText;
      error?: BoundedText;
    }
  | { kind: "todos"; items: { text: string; state: "pending" | "in_progress" | "done" | "cancelled" }[] }
  | { kind: "retry"; reason: string; attempt?: number; of?: number; wait_ms?: number }
  | { kind: "usage"; input_tokens: number; cached_tokens: number; output_tokens: number; cost?: number }
  | { kind: "check"; command: BoundedText; passed: boolean; exit_code?: number; output: BoundedText }
  | { kind: "omitted"; entries: number };

export type Entry = EntryBody & {
  sequence: number;
  change: number;
  attempt: number;
  turn: number;
  run_id: string;
  subagent: boolean;
  at: string;
  updated_at: string;
};

/** The list with new and changed entries in their places. */
export function merged(all: Entry[], fresh: Entry[]): Entry[] {
  if (fresh.length === 0) return all;
  const bySequence = new Map(all.map((entry) => [entry.sequence, entry]));
  for (const entry of fresh) {
    const old = bySequence.get(entry.sequence);
    if (old === undefined || old.change <= entry.change) bySequence.set(entry.sequence, entry);
  }
  return [...bySequence.values()].sort((a, b) => a.sequence - b.sequence);
}

export function whole({ text, cut_bytes: cut = 0, end = "" }: BoundedText): string {
  return cut === 0 ? text : `${text}\n… ${cut} bytes left out …\n${end}`;
}

/** The words of an entry, for the search. */
export function wordsOf(entry: Entry): string {
  switch (entry.kind) {
    case "person":
      return `${entry.file ?? ""} ${whole(entry.text)}`;
    case "prompt":
    case "message":
    case "thinking":
    case "error":
    case "output":
      return whole(entry.text);
    case "tool":
      return `${entry.name} ${whole(entry.arguments)} ${entry.result ? whole(entry.result) : ""}`;
    case "command":
      return `${whole(entry.command)} ${entry.output ? whole(entry.output) : ""}`;
    case "edit":
      return `${entry.path} ${entry.diff ? whole(entry.diff) : ""}`;
    case "todos":
      return entry.items.map((item) => item.text).join(" ");
    case "check":
      return `${whole(entry.command)} ${whole(entry.output)}`;
    case "retry":
      return entry.reason;
    default:
      return "";
  }
}

/** The newest todo list. */
export function newestTodos(entries: Entry[]) {
  const found = entries.findLast((entry) => entry.kind === "todos");
  return found?.kind === "todos" ? found.items : [];
}

/** What a tool was called with, in a few words: the value that tells most. */
export function gist(text: BoundedText): string {
  try {
    const value = JSON.parse(text.text) as unknown;
    if (typeof value !== "object" || value === null) return String(value);
    const fields = value as Record<string, unknown>;
    const names = ["file_path", "path", "pattern", "query", "url", "description", "command", "prompt"];
    const name = names.find((one) => typeof fields[one] === "string") ?? Object.keys(fields)[0];
    const told = name === undefined ? "" : fields[name];
    return typeof told === "string" ? told : JSON.stringify(told ?? "");
  } catch {
    return text.text;
  }
}
