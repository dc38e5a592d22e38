// The changes of a file as rows: lines, or pairs of lines side by side, and the gaps between them, of which parts can be shown.
import type { Hunk, PatchFile, PatchLine } from "./patch";
import { pairsOf } from "./words";

export type Row =
  | { kind: "gap"; gap: number; head: string; /** Lines that it hides, if that is known. */ hidden?: number }
  | { kind: "line"; line: PatchLine }
  | { kind: "pair"; left?: PatchLine; right?: PatchLine }
  | { kind: "note"; text: string };

/** How many lines of a gap are shown after what is above it, and before what is below it. */
export interface Shown {
  top: number;
  bottom: number;
}

/** Rows that are drawn or left out together. */
export const SLAB = 40;
/** How many lines one press shows. */
export const MORE = 20;

interface Between {
  /** The first line in what is, and how many there are. */
  from: number;
  count?: number;
  /** What its lines have in what was, less than in what is. */
  shift: number;
}

const counted = (hunk: Hunk, side: "old" | "now") => hunk.lines.filter((line) => line[side] !== undefined).length;

function betweenOf(hunks: Hunk[], gap: number, total: number | undefined): Between {
  const [above, below] = [hunks[gap - 1], hunks[gap]];
  const from = above === undefined ? 1 : above.now + counted(above, "now");
  const shift = above === undefined ? (below?.old ?? 1) - (below?.now ?? 1) : above.old + counted(above, "old") - from;
  // A file without lines begins before its first line.
  const end = below === undefined ? (total === undefined ? undefined : total + 1) : below.now;
  return { from, shift, count: end === undefined ? undefined : Math.max(0, end - from) };
}

/**
 * `text` has the lines of the file as it is, once they are known. Without `expands` gaps only head what follows.
 */
export function rowsOf(
  file: PatchFile,
  {
    split = false,
    expands = false,
    text,
    shown = new Map(),
  }: { split?: boolean; expands?: boolean; text?: string[]; shown?: ReadonlyMap<number, Shown> } = {},
): Row[] {
  const rows: Row[] = [];
  const { hunks } = file;
  const context = (between: Between, from: number, count: number) => {
    for (let now = from; now < from + count; now += 1) {
      const line: PatchLine = { kind: "context", text: text?.[now - 1] ?? "", old: now + between.shift, now };
      rows.push(split ? { kind: "pair", left: line, right: line } : { kind: "line", line });
    }
  };
  for (let gap = 0; gap <= hunks.length; gap += 1) {
    const hunk = hunks[gap];
    const between = betweenOf(hunks, gap, text?.length);
    const all = between.count ?? Number.POSITIVE_INFINITY;
    const wanted = text === undefined ? { top: 0, bottom: 0 } : (shown.get(gap) ?? { top: 0, bottom: 0 });
    const top = Math.min(wanted.top, all);
    const bottom = Math.min(wanted.bottom, all - top);
    context(between, between.from, top);
    const hidden = between.count === undefined ? undefined : between.count - top - bottom;
    if (hidden !== 0 && (expands || hunk !== undefined)) {
      // After the last change there is only something to show, nothing to head.
      if (expands || hunk !== undefined) rows.push({ kind: "gap", gap, head: hunk?.head ?? "", hidden });
    } else if (!expands && hunk !== undefined) rows.push({ kind: "gap", gap, head: hunk.head, hidden });
    if (bottom > 0) context(between, between.from + all - bottom, bottom);
    if (hunk === undefined) continue;
    if (!split) {
      for (const line of hunk.lines)
        rows.push(line.kind === "note" ? { kind: "note", text: line.text } : { kind: "line", line });
      continue;
    }
    for (const { left, right, note } of pairsOf(hunk))
      rows.push(note === undefined ? { kind: "pair", left, right } : { kind: "note", text: note.text });
  }
  return rows;
}

/** What is shown of a gap after one more press, at its top or its bottom. */
export function expanded(
  shown: ReadonlyMap<number, Shown>,
  gap: number,
  way: "top" | "bottom" | "all",
): Map<number, Shown> {
  const old = shown.get(gap) ?? { top: 0, bottom: 0 };
  const next = way === "all" ? { top: Number.MAX_SAFE_INTEGER, bottom: 0 } : { ...old, [way]: old[way] + MORE };
  return new Map([...shown, [gap, next]]);
}

/** The lines of a file that stand together, as they were and as they are: what a reader of the language needs at once. */
export function groupsOf(rows: Row[]): { groups: string[][]; of: PatchLine[][] } {
  const of: PatchLine[][] = [];
  let [were, are]: [PatchLine[], PatchLine[]] = [[], []];
  const flush = () => {
    if (are.length > 0) of.push(are);
    // Lines that stayed have the colours of the file as it is.
    if (were.some((line) => line.kind === "removed")) of.push(were);
    [were, are] = [[], []];
  };
  const add = (line: PatchLine | undefined) => {
    if (line === undefined) return;
    if (line.old !== undefined) were.push(line);
    if (line.now !== undefined) are.push(line);
  };
  for (const row of rows) {
    if (row.kind === "gap") flush();
    else if (row.kind === "line") add(row.line);
    else if (row.kind === "pair") {
      add(row.left);
      if (row.right !== row.left) add(row.right);
    }
  }
  flush();
  return { of, groups: of.map((lines) => lines.map((line) => line.text)) };
}

/** The place of a line in an address: `R12` as it is, `L12` as it was. */
export function rowOfPlace(rows: Row[], place: string): number {
  const number = Number(place.slice(1));
  const side = place.startsWith("L") ? "old" : "now";
  return rows.findIndex((row) => {
    if (row.kind === "line") return row.line[side] === number;
    if (row.kind !== "pair") return false;
    return (side === "old" ? row.left?.old : row.right?.now) === number;
  });
}
