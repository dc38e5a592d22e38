// One cell: its code, what can be done with it, and what came of it.
import { GitFork, Play, Plus, Square, Trash2 } from "lucide-react";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { toastError } from "../ui/feedback";
import { duration } from "../ui/format";
import { LANGUAGES, type Cell } from "./cells";
import { CodeEditor } from "./CodeEditor";
import { OutputView } from "./OutputView";
import { addCell, removeCell, run, speak, stop, write } from "./store";

interface Props {
  id: string;
  cell: Cell;
  number: number;
  isLast: boolean;
  /** Why nothing can be run now; undefined if it can. */
  why?: string;
  focus: boolean;
  onFocus: (key: string) => void;
  onFork: (cell: Cell) => void;
}

const BORDERS: Record<Cell["phase"], string> = {
  new: "border-line",
  running: "border-accent",
  done: "border-line",
  failed: "border-bad/50",
  stopped: "border-warn/50",
};

function count(cell: Cell): string {
  if (cell.phase === "running") return "[*]";
  return cell.count === undefined ? "[ ]" : `[${cell.count}]`;
}

export function CellCard({ id, cell, number, isLast, why, focus, onFocus, onFork }: Props) {
  const running = cell.phase === "running";
  const start = (andGoOn: boolean) => {
    if (why !== undefined || running || cell.inherited === true) return;
    run(id, cell.key).catch(toastError);
    if (andGoOn && isLast) onFocus(addCell(id, cell.key));
  };
  const add = () => onFocus(addCell(id, cell.key));
  return (
    <section
      aria-label={`Cell ${number}`}
      data-phase={cell.phase}
      className={classes("min-w-0 rounded-lg border bg-surface", BORDERS[cell.phase])}
    >
      <div className="flex flex-wrap items-center gap-1 border-b border-line px-2 py-1">
        <span
          className="w-9 font-mono text-xs text-dim"
          aria-label={running ? "running" : `run ${cell.count ?? "never"}`}
        >
          {count(cell)}
        </span>
        <select
          aria-label={`Language of cell ${number}`}
          value={cell.language}
          disabled={running || cell.inherited === true || why !== undefined}
          onChange={(event) => speak(id, cell.key, event.target.value)}
          className="h-7 rounded border border-line bg-surface px-1 text-xs text-dim disabled:opacity-70"
        >
          {LANGUAGES.map((language) => (
            <option key={language}>{language}</option>
          ))}
        </select>
        <span role="status" className="min-w-0 flex-1 truncate px-1 text-xs text-dim">
          {cell.inherited === true
            ? "ran before the fork"
            : running
              ? "running…"
              : cell.durationMs !== undefined && duration(cell.durationMs)}
        </span>
        {cell.execution !== undefined && !running && (
          <Button
            tone="ghost"
            className="h-7"
            aria-label={`Fork from cell ${number}`}
            title="Fork from this cell"
            why={why}
            onClick={() => onFork(cell)}
            icon={<GitFork aria-hidden className="size-4" />}
          />
        )}
        {cell.inherited !== true && (
          <Button
            tone="ghost"
            className="h-7"
            aria-label={`Remove cell ${number}`}
            title="Remove from this page; the record keeps what ran"
            onClick={() => removeCell(id, cell.key)}
            icon={<Trash2 aria-hidden className="size-4" />}
          />
        )}
        <Button
          tone="ghost"
          className="h-7"
          aria-label={`Add a cell after cell ${number}`}
          title="Add a cell below"
          why={why}
          onClick={add}
          icon={<Plus aria-hidden className="size-4" />}
        />
        {running ? (
          <Button
            className="h-7"
            aria-label={`Stop cell ${number}`}
            onClick={() => stop(cell.key)}
            icon={<Square aria-hidden className="size-3.5" />}
          >
            Stop
          </Button>
        ) : (
          cell.inherited !== true && (
            <Button
              tone={cell.phase === "new" ? "primary" : "plain"}
              className="h-7"
              aria-label={`Run cell ${number}`}
              why={why}
              disabled={why === undefined && cell.source.trim() === ""}
              onClick={() => start(false)}
              icon={<Play aria-hidden className="size-3.5" />}
            >
              Run
            </Button>
          )
        )}
      </div>
      <CodeEditor
        value={cell.source}
        language={cell.language}
        label={`Code of cell ${number}`}
        editable={!running && cell.inherited !== true}
        focus={focus}
        onChange={(source) => write(id, cell.key, source)}
        onRun={start}
      />
      {cell.outputs.length > 0 && (
        <div
          className="min-w-0 space-y-2 border-t border-line p-3"
          aria-label={`Output of cell ${number}`}
          role="group"
        >
          {cell.outputs.map((output, at) => (
            <OutputView key={at} output={output} />
          ))}
        </div>
      )}
    </section>
  );
}
