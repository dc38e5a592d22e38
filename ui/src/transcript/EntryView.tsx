// One entry of a conversation: messages as text, calls of tools as one line that opens.
import { memo, useMemo, useState, type ReactNode } from "react";
import {
  Brain,
  ChevronRight,
  CircleAlert,
  CircleCheck,
  FilePen,
  LoaderCircle,
  Play,
  RotateCw,
  SquareTerminal,
  TextQuote,
  UserRound,
  Wrench,
  X,
} from "lucide-react";
import { useNameOf } from "../api/people";
import { CodeLines, lineParts } from "../code/Code";
import { useTokens } from "../code/highlight";
import { languageOfPath } from "../code/languages";
import { Badge } from "../ui/Badge";
import { classes } from "../ui/classes";
import { money, paragraphs, plainText, span } from "../ui/format";
import { Markdown } from "../ui/Markdown";
import { Ago, Since } from "../ui/time";
import { Todos } from "./Todos";
import { gist, whole, type BoundedText, type CallState, type Entry } from "./entries";

type Of<K extends Entry["kind"]> = Extract<Entry, { kind: K }>;

const NOTICED_MS = 2000;

function Mark({ state, icon }: { state: CallState; icon: ReactNode }) {
  if (state === "running")
    return <LoaderCircle aria-label="running" className="size-4 shrink-0 animate-spin text-accent" />;
  if (state === "failed") return <X aria-label="failed" className="size-4 shrink-0 text-bad" />;
  return <span className="shrink-0 text-dim">{icon}</span>;
}

function Raw({ text, className }: { text: BoundedText; className?: string }) {
  return (
    <pre
      tabIndex={0}
      className={classes(
        "max-h-96 overflow-auto rounded-md bg-raised p-2 font-mono text-xs break-words whitespace-pre-wrap",
        className,
      )}
    >
      {paragraphs(whole(text))}
    </pre>
  );
}

/** A line that opens. It stays a line if there is nothing inside. */
function Fold({
  state,
  icon,
  name,
  about,
  after,
  open = false,
  closed,
  children,
}: {
  state: CallState;
  icon: ReactNode;
  name: string;
  about: string;
  after?: ReactNode;
  open?: boolean;
  /** What stands under the line while it is closed. */
  closed?: ReactNode;
  children?: ReactNode;
}) {
  // What is inside is drawn, and coloured, once somebody opens it.
  const [shown, setShown] = useState(open);
  const line = (
    <>
      <Mark state={state} icon={icon} />
      <span className={classes("shrink-0", state === "failed" ? "font-medium text-bad" : "text-dim")}>{name}</span>
      <span className="min-w-0 flex-1 truncate font-mono text-xs text-dim">{about}</span>
      {after}
    </>
  );
  if (children === undefined || children === false || children === null)
    return <div className="flex items-center gap-2 px-2 py-1">{line}</div>;
  return (
    <>
      <details open={shown} onToggle={({ currentTarget }) => setShown(currentTarget.open)} className="group rounded-md">
        <summary className="flex list-none items-center gap-2 rounded-md px-2 py-1 hover:bg-raised [&::-webkit-details-marker]:hidden">
          {line}
          <ChevronRight aria-hidden className="size-3.5 shrink-0 text-dim group-open:rotate-90" />
        </summary>
        {shown && <div className="pt-1 pr-2 pb-2 pl-8">{children}</div>}
      </details>
      {!shown && closed}
    </>
  );
}

const DIFF_LOOKS: Record<string, string> = { "+": "bg-ok-soft", "-": "bg-bad-soft" };
const DIFF_SAID: Record<string, string> = { "+": "added ", "-": "removed " };

function SmallDiff({ diff, path }: { diff: BoundedText; path: string }) {
  const lines = useMemo(() => whole(diff).split("\n"), [diff]);
  // Both sides in one group: a small edit is seldom more than a few lines.
  const groups = useMemo(() => [lines.map((line) => (/^[+\- ]/.test(line) ? line.slice(1) : line))], [lines]);
  const tokens = useTokens(languageOfPath(path), groups)?.[0];
  return (
    <pre
      tabIndex={0}
      aria-label={`Changes of ${plainText(path)}`}
      className="max-h-96 overflow-auto rounded-md border border-line py-1 font-mono text-xs leading-5"
    >
      <div className="w-max min-w-full">
        {lines.map((line, at) => {
          const sign = line.charAt(0);
          return (
            <div key={at} className={classes("px-2", DIFF_LOOKS[sign])}>
              <span aria-hidden className="inline-block w-4 text-dim select-none">
                {sign === "+" || sign === "-" ? sign : ""}
              </span>
              {DIFF_SAID[sign] !== undefined && <span className="sr-only">{DIFF_SAID[sign]}</span>}
              {lineParts(groups[0]?.[at] ?? "", tokens?.[at]?.length ? tokens[at] : undefined) || " "}
            </div>
          );
        })}
      </div>
    </pre>
  );
}

/** The last line of what a failed command wrote: mostly it says why. */
function LastLine({ output }: { output: BoundedText | undefined }) {
  const lines = output === undefined ? [] : whole(output).trimEnd().split("\n");
  const last = lines.findLast((line) => line.trim() !== "");
  if (last === undefined) return null;
  return <p className="truncate pr-2 pb-1 pl-8 font-mono text-xs text-bad">{plainText(last.slice(0, 300))}</p>;
}

/** How long a call took, if one would have noticed it. */
function Took({ entry }: { entry: Of<"tool" | "command" | "edit"> }) {
  const look = "shrink-0 text-xs text-dim tabular-nums";
  if (entry.state === "running")
    return (
      <span className={look}>
        <Since at={entry.at} />
      </span>
    );
  const took = Date.parse(entry.updated_at) - Date.parse(entry.at);
  return took >= NOTICED_MS ? <span className={look}>{span(took)}</span> : null;
}

function countLines(diff: BoundedText | undefined): ReactNode {
  if (diff === undefined) return null;
  const lines = diff.text.split("\n");
  const count = (sign: string) => lines.filter((line) => line.startsWith(sign)).length;
  return (
    <span className="shrink-0 text-xs tabular-nums">
      <span className="text-ok">+{count("+")}</span> <span className="text-bad">−{count("-")}</span>
    </span>
  );
}

function Person({ entry }: { entry: Of<"person"> }) {
  const nameOf = useNameOf();
  return (
    <div className="ml-auto max-w-[85%] rounded-lg border border-accent/30 bg-accent-soft px-3 py-2">
      <p className="flex flex-wrap items-center gap-x-2 text-xs text-dim">
        <UserRound aria-hidden className="size-3.5" />
        <span className="font-medium text-ink">{plainText(nameOf(entry.author))}</span>
        <Ago at={entry.at} />
        {entry.file && (
          <span className="font-mono break-all">
            {plainText(entry.file)}
            {entry.line === undefined ? "" : `:${entry.line}`}
          </span>
        )}
      </p>
      <Markdown text={whole(entry.text)} className="mt-1" />
    </div>
  );
}

const EDITS = { written: "Write", changed: "Edit", deleted: "Delete" };

function content(entry: Entry): ReactNode {
  switch (entry.kind) {
    case "person":
      return <Person entry={entry} />;
    case "message":
      return <Markdown text={whole(entry.text)} className="max-w-prose px-2 py-2 leading-relaxed" />;
    case "thinking":
      return (
        <Fold
          state="done"
          icon={<Brain aria-hidden className="size-4" />}
          name="Thinking"
          about={plainText(entry.text.text.split("\n")[0] ?? "")}
        >
          <Markdown text={whole(entry.text)} className="text-dim" />
        </Fold>
      );
    case "prompt":
      return (
        <Fold
          state="done"
          icon={<TextQuote aria-hidden className="size-4" />}
          name="Prompt"
          about={plainText(entry.text.text.split("\n").find((line) => line.trim() !== "") ?? "")}
        >
          <Raw text={entry.text} />
        </Fold>
      );
    case "started":
      return (
        <Fold
          state="done"
          icon={<Play aria-hidden className="size-4" />}
          name="Agent started"
          about={plainText(entry.model ?? "")}
        />
      );
    case "tool":
      return (
        <Fold
          state={entry.state}
          icon={<Wrench aria-hidden className="size-4" />}
          name={plainText(entry.name)}
          about={plainText(gist(entry.arguments))}
          after={<Took entry={entry} />}
        >
          <Raw text={entry.arguments} />
          {entry.result && <Raw text={entry.result} className="mt-2" />}
        </Fold>
      );
    case "command":
      return (
        <Fold
          state={entry.state}
          icon={<SquareTerminal aria-hidden className="size-4" />}
          name="Run"
          about={plainText(entry.command.text)}
          closed={entry.state === "failed" && <LastLine output={entry.output} />}
          after={
            <>
              {entry.exit_code !== undefined && entry.exit_code !== 0 && (
                <Badge tone="bad">exit code {entry.exit_code}</Badge>
              )}
              <Took entry={entry} />
            </>
          }
        >
          <pre
            tabIndex={0}
            className="max-h-60 overflow-auto rounded-t-md bg-raised p-2 font-mono text-xs break-words whitespace-pre-wrap"
          >
            <span aria-hidden className="text-dim select-none">
              ${" "}
            </span>
            <CodeLines text={whole(entry.command)} language="shell" />
          </pre>
          {entry.output && whole(entry.output) !== "" ? (
            <Raw text={entry.output} className="rounded-t-none border-t border-line" />
          ) : (
            entry.state !== "running" && (
              <p className="rounded-b-md border-t border-line bg-raised px-2 py-1 text-xs text-dim">No output.</p>
            )
          )}
        </Fold>
      );
    case "edit":
      return (
        <Fold
          state={entry.state}
          icon={<FilePen aria-hidden className="size-4" />}
          name={EDITS[entry.edit]}
          about={plainText(entry.path)}
          after={
            <>
              {countLines(entry.diff)}
              <Took entry={entry} />
            </>
          }
        >
          {(entry.diff ?? entry.error) && (
            <>
              {entry.error && <Raw text={entry.error} className="mb-2 text-bad" />}
              {entry.diff && <SmallDiff diff={entry.diff} path={entry.path} />}
            </>
          )}
        </Fold>
      );
    case "todos":
      return (
        <Fold
          state="done"
          icon={<CircleCheck aria-hidden className="size-4" />}
          name="Plan"
          about={`${entry.items.filter((item) => item.state === "done").length} of ${entry.items.length} done`}
        >
          <Todos items={entry.items} />
        </Fold>
      );
    case "check":
      return (
        <Fold
          open={!entry.passed}
          state={entry.passed ? "done" : "failed"}
          icon={<CircleCheck aria-hidden className="size-4 text-ok" />}
          name={entry.passed ? "Check passed" : "Check failed"}
          about={plainText(entry.command.text)}
          after={entry.exit_code ? <Badge tone="bad">exit code {entry.exit_code}</Badge> : undefined}
        >
          <Raw text={entry.output} />
        </Fold>
      );
    case "retry":
      return (
        <Fold
          state="done"
          icon={<RotateCw aria-hidden className="size-4" />}
          name="Waiting for the model"
          about={`${plainText(entry.reason)}${entry.wait_ms ? `, ${span(entry.wait_ms)}` : ""}`}
        />
      );
    case "error":
      return (
        <div className="flex gap-2 rounded-md bg-bad-soft px-2 py-1.5 text-bad">
          <CircleAlert aria-hidden className="mt-0.5 size-4 shrink-0" />
          <p className="min-w-0 break-words whitespace-pre-wrap">{paragraphs(whole(entry.text))}</p>
        </div>
      );
    case "output":
      return <Raw text={entry.text} className="max-h-none" />;
    case "usage":
      return (
        <p className="px-2 py-1 text-xs text-dim">
          {entry.input_tokens.toLocaleString()} tokens in ({entry.cached_tokens.toLocaleString()} cached),{" "}
          {entry.output_tokens.toLocaleString()} out
          {entry.cost === undefined ? "" : `, ${money(entry.cost, "USD")}`}
        </p>
      );
    case "omitted":
      return (
        <p className="px-2 py-1 text-xs text-warn">
          {entry.entries.toLocaleString()} entries were left out here; the raw output has them.
        </p>
      );
  }
}

export const EntryView = memo(function EntryView({ entry }: { entry: Entry }) {
  return (
    <div data-entry={entry.kind} className={entry.subagent ? "ml-4 border-l-2 border-line pl-2" : undefined}>
      {content(entry)}
    </div>
  );
});
