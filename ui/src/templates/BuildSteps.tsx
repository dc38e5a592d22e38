// A build as its steps, folded: each with its time, its state and what it wrote. The one that runs is open and followed.
import { useEffect, useRef, useState } from "react";
import { Ban, Check, ChevronRight, CircleX, LoaderCircle, Recycle } from "lucide-react";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { clock, duration, plainText } from "../ui/format";
import { Since } from "../ui/time";
import { openByDefault, tookMs, type LogLine, type Step, type StepState } from "./buildLog";

const ICONS: Record<StepState, [typeof Check, string, string]> = {
  running: [LoaderCircle, "text-info animate-spin", "running"],
  done: [Check, "text-ok", "done"],
  cached: [Recycle, "text-dim", "cached"],
  failed: [CircleX, "text-bad", "failed"],
  stopped: [Ban, "text-warn", "stopped"],
};

const LEVELS: Record<string, string> = { error: "text-bad", warn: "text-warn", debug: "text-dim" };
/** More lines than this are shown when they are asked for. */
const MOST_LINES = 400;

function Output({ lines, follow, label }: { lines: LogLine[]; follow: boolean; label: string }) {
  const [all, setAll] = useState(false);
  const box = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  const shown = all ? lines : lines.slice(-MOST_LINES);
  useEffect(() => {
    if (follow && atEnd.current && box.current !== null) box.current.scrollTop = box.current.scrollHeight;
  }, [follow, lines]);
  return (
    <>
      {shown.length < lines.length && (
        <Button tone="ghost" className="mx-3 mt-2" onClick={() => setAll(true)}>
          Show {lines.length - shown.length} earlier lines
        </Button>
      )}
      <pre
        ref={box}
        role="log"
        aria-label={label}
        aria-live="off"
        tabIndex={0}
        onScroll={({ currentTarget: at }) => {
          atEnd.current = at.scrollHeight - at.scrollTop - at.clientHeight < 24;
        }}
        className="max-h-96 overflow-auto bg-raised/60 px-4 py-2 font-mono text-xs leading-5 break-words whitespace-pre-wrap"
      >
        {shown.map((line, at) => (
          <div key={lines.length - shown.length + at} className={LEVELS[line.level]} title={clock(line.at)}>
            {plainText(line.message) || " "}
          </div>
        ))}
      </pre>
    </>
  );
}

function Time({ step }: { step: Step }) {
  const took = tookMs(step);
  if (step.state === "cached") return <Badge>CACHED</Badge>;
  return (
    <span className="text-xs whitespace-nowrap text-dim tabular-nums">
      {took !== undefined ? duration(took) : step.state === "running" ? <Since at={step.begunAt} /> : ""}
    </span>
  );
}

function StepRow({ step, open, onToggle }: { step: Step; open: boolean; onToggle: () => void }) {
  const [Icon, tone, word] = ICONS[step.state];
  const id = `build-step-${step.id}`;
  const folds = step.lines.length > 0;
  return (
    <li data-step={step.id} data-state={step.state}>
      <button
        type="button"
        aria-expanded={folds ? open : undefined}
        aria-controls={folds ? id : undefined}
        disabled={!folds}
        onClick={onToggle}
        className={classes(
          "flex w-full items-start gap-2 px-3 py-2 text-left enabled:hover:bg-raised sm:px-4",
          step.state === "failed" && "bg-bad-soft enabled:hover:bg-bad-soft",
        )}
      >
        <ChevronRight
          aria-hidden
          className={classes("mt-0.5 size-4 shrink-0 text-dim", open && "rotate-90", !folds && "invisible")}
        />
        <Icon aria-hidden className={classes("mt-0.5 size-4 shrink-0", tone)} />
        <span className="sr-only">{word}: </span>
        {step.place !== undefined && (
          <span className="mt-px shrink-0 text-xs leading-5 text-dim tabular-nums">{step.place}</span>
        )}
        <span className={classes("min-w-0 flex-1 font-mono text-[13px] break-words", !open && "line-clamp-2")}>
          {plainText(step.title)}
        </span>
        <Time step={step} />
      </button>
      {open && folds && (
        <div id={id}>
          <Output
            lines={step.lines}
            follow={step.state !== "done"}
            label={`Output of ${step.place === undefined ? step.title : `step ${step.id}`}`}
          />
        </div>
      )}
    </li>
  );
}

export function BuildSteps({ steps }: { steps: Step[] }) {
  // What people folded or unfolded stays so; the rest follows the build.
  const [chosen, setChosen] = useState(new Map<string, boolean>());
  const usual = openByDefault(steps);
  const isOpen = (id: string) => chosen.get(id) ?? usual.has(id);
  const folded = steps.filter(({ id, lines }) => lines.length > 0 && !isOpen(id)).length;
  const every = (open: boolean) => setChosen(new Map(steps.map(({ id }) => [id, open])));
  return (
    <>
      <ol aria-label="Steps of the build" className="divide-y divide-line">
        {steps.map((step) => (
          <StepRow
            key={step.id}
            step={step}
            open={isOpen(step.id)}
            onToggle={() => setChosen((old) => new Map(old).set(step.id, !isOpen(step.id)))}
          />
        ))}
      </ol>
      <div className="flex justify-end border-t border-line px-2 py-1">
        <Button tone="ghost" onClick={() => every(folded > 0)}>
          {folded > 0 ? "Unfold all" : "Fold all"}
        </Button>
      </div>
    </>
  );
}
