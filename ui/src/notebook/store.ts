// The notebooks of this page's sandboxes. They are kept while the page is open, so that a look at another tab loses nothing.
import { useSyncExternalStore } from "react";
import { raw } from "../api/client";
import { saveAnswer } from "../api/files";
import { readEvents } from "../api/sse";
import { fromNotebook, inheritedUntil, newCell, started, withEvent, type Cell } from "./cells";

export interface Context {
  id: string;
  language: string;
  cwd: string;
}

export interface Notebook {
  cells: Cell[];
  language: string;
}

export interface Origin {
  from: string;
  until: string;
}

const notebooks = new Map<string, Notebook>();
const stops = new Map<string, AbortController>();
const watchers = new Set<() => void>();
/** Executions that a cell here has had, or still has: a new look at the record does not show them again. */
const known = new Map<string, Set<string>>();

function change(id: string, next: (notebook: Notebook) => Notebook) {
  const now = notebooks.get(id);
  if (now === undefined) return;
  notebooks.set(id, next(now));
  for (const watcher of watchers) watcher();
}

export function useNotebook(id: string): Notebook | undefined {
  return useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => notebooks.get(id),
  );
}

const base = (id: string) => `/api/v1/sandboxes/${encodeURIComponent(id)}/code`;

async function recorded(id: string): Promise<Cell[]> {
  return fromNotebook(await (await raw(`${base(id)}/notebook`)).json());
}

/** Reads what has run, and puts it before what is written here and has not. */
export async function load(id: string, origin?: Origin): Promise<null> {
  const [before, own] = await Promise.all([origin === undefined ? [] : recorded(origin.from), recorded(id)]);
  const seen = known.get(id) ?? new Set<string>();
  known.set(id, seen);
  const inherited = origin === undefined ? [] : inheritedUntil(before, origin.until);
  const fresh = [...inherited, ...own].filter((cell) => !seen.has(cell.execution ?? ""));
  for (const cell of fresh) if (cell.execution !== undefined) seen.add(cell.execution);
  if (!notebooks.has(id)) notebooks.set(id, { cells: [], language: own.at(-1)?.language ?? "python" });
  change(id, (now) => {
    const unrun = now.cells.findIndex((cell) => cell.phase === "new" || cell.phase === "running");
    const at = unrun === -1 ? now.cells.length : unrun;
    const cells = [...now.cells.slice(0, at), ...fresh, ...now.cells.slice(at)];
    // There is always one to write in.
    return { ...now, cells: cells.at(-1)?.phase === "new" ? cells : [...cells, newCell(now.language)] };
  });
  return null;
}

function changeCell(id: string, key: string, next: (cell: Cell) => Cell) {
  change(id, (now) => ({ ...now, cells: now.cells.map((cell) => (cell.key === key ? next(cell) : cell)) }));
}

export function write(id: string, key: string, source: string) {
  changeCell(id, key, (cell) => ({ ...cell, source }));
}

export function speak(id: string, key: string, language: string) {
  changeCell(id, key, (cell) => ({ ...cell, language, context: undefined }));
  change(id, (now) => ({ ...now, language }));
}

/** Puts an empty cell after that one, or at the end. Returns its key. */
export function addCell(id: string, after?: string): string {
  const language = notebooks.get(id)?.language ?? "python";
  const cell = newCell(language);
  change(id, (now) => {
    const at = now.cells.findIndex((one) => one.key === after);
    const place = at === -1 ? now.cells.length : at + 1;
    return { ...now, cells: [...now.cells.slice(0, place), cell, ...now.cells.slice(place)] };
  });
  return cell.key;
}

export function removeCell(id: string, key: string) {
  stop(key);
  change(id, (now) => ({ ...now, cells: now.cells.filter((cell) => cell.key !== key) }));
}

/** Interrupts a cell: the server does, when its client leaves. */
export function stop(key: string) {
  stops.get(key)?.abort();
}

/** Runs a cell and shows what it tells while it does. A refusal is thrown, and the cell is as before. */
export async function run(id: string, key: string): Promise<void> {
  const before = notebooks.get(id)?.cells.find((cell) => cell.key === key);
  if (before === undefined || before.phase === "running" || before.source.trim() === "") return;
  const stopping = new AbortController();
  stops.set(key, stopping);
  changeCell(id, key, started);
  const where = before.context === undefined ? { language: before.language } : { context_id: before.context };
  try {
    const answer = await raw(base(id), {
      method: "POST",
      headers: { "content-type": "application/json", accept: "text/event-stream" },
      body: JSON.stringify({ code: before.source, timeout_s: TIME_LIMIT_S, ...where }),
      signal: stopping.signal,
    });
    await readEvents(answer, ({ event, data }) => {
      const told = JSON.parse(data) as Record<string, unknown>;
      if (event === "start" && typeof told.execution_id === "string") known.get(id)?.add(told.execution_id);
      changeCell(id, key, (cell) => withEvent(cell, event, told));
    });
    changeCell(id, key, (cell) => (cell.phase === "running" ? cutOff(cell, "The connection was lost.") : cell));
  } catch (error) {
    if (stopping.signal.aborted) changeCell(id, key, (cell) => cutOff(cell, "You stopped it."));
    else {
      changeCell(id, key, () => before);
      throw error;
    }
  } finally {
    stops.delete(key);
  }
}

/** Five minutes, as E2B's Python SDK; the button stops it earlier. */
const TIME_LIMIT_S = 300;

function cutOff(cell: Cell, text: string): Cell {
  return { ...cell, phase: "stopped", outputs: [...cell.outputs, { kind: "note", text }] };
}

/** The contexts, which also tells whether there is an interpreter. Asking keeps no sandbox awake. */
export async function contexts(id: string): Promise<Context[]> {
  const answer = await raw(`${base(id)}/contexts?watch=true`);
  return ((await answer.json()) as { items: Context[] }).items;
}

/** Restarts the context of a language, or all of them: their variables are gone. */
export async function restart(id: string, language?: string) {
  const all = await contexts(id);
  for (const context of all.filter((one) => language === undefined || one.language === language)) {
    await raw(`${base(id)}/contexts/${encodeURIComponent(context.id)}/restart`, { method: "POST" });
  }
}

export async function exportNotebook(id: string) {
  await saveAnswer(await raw(`${base(id)}/notebook`), `${id}.ipynb`);
}
