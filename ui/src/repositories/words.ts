// What differs within lines, and lines next to each other.
import type { Hunk, PatchLine } from "./patch";

/** A part of a line, and whether it differs from the other side. */
export interface Part {
  text: string;
  changed: boolean;
}

export interface Pair {
  left?: PatchLine;
  right?: PatchLine;
  /** A line that is neither: "No newline at end of file". */
  note?: PatchLine;
}

const WORDS = /[\p{L}\p{N}_]+|\s+|./gu;
const LONGEST = 2000;

/** The words that two lines do not share at their beginning and end. Nothing is marked if they share too little. */
export function wordDiff(before: string, after: string): [Part[], Part[]] {
  const plain = (text: string): Part[] => [{ text, changed: false }];
  if (before.length > LONGEST || after.length > LONGEST) return [plain(before), plain(after)];
  const [a, b] = [before.match(WORDS) ?? [], after.match(WORDS) ?? []];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a.at(-1 - end) === b.at(-1 - end)) end += 1;
  const shared = [...a.slice(0, start), ...a.slice(a.length - end)].join("").trim().length;
  if (shared * 3 < Math.max(before.trim().length, after.trim().length)) return [plain(before), plain(after)];
  const parts = (all: string[]): Part[] =>
    [
      { text: all.slice(0, start).join(""), changed: false },
      { text: all.slice(start, all.length - end).join(""), changed: true },
      { text: all.slice(all.length - end).join(""), changed: false },
    ].filter((part) => part.text !== "");
  return [parts(a), parts(b)];
}

/** The lines of a hunk side by side: removed lines next to those that replace them. */
export function pairsOf(hunk: Pick<Hunk, "lines">): Pair[] {
  const pairs: Pair[] = [];
  let removed: PatchLine[] = [];
  let added: PatchLine[] = [];
  const flush = () => {
    for (let at = 0; at < Math.max(removed.length, added.length); at += 1)
      pairs.push({ left: removed[at], right: added[at] });
    removed = [];
    added = [];
  };
  for (const line of hunk.lines) {
    if (line.kind === "removed") {
      if (added.length > 0) flush();
      removed.push(line);
    } else if (line.kind === "added") added.push(line);
    else {
      flush();
      pairs.push(line.kind === "note" ? { note: line } : { left: line, right: line });
    }
  }
  flush();
  return pairs;
}

/** The parts of every changed line of a hunk that has a counterpart. */
export function partsOf(hunk: Pick<Hunk, "lines">): Map<PatchLine, Part[]> {
  const found = new Map<PatchLine, Part[]>();
  for (const { left, right } of pairsOf(hunk)) {
    if (left?.kind !== "removed" || right?.kind !== "added") continue;
    const [before, after] = wordDiff(left.text, right.text);
    found.set(left, before);
    found.set(right, after);
  }
  return found;
}
