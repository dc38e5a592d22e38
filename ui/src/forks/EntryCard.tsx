// One of those that compete: how far it is, what it says, what it made, and where it came in.
import { Link } from "@tanstack/react-router";
import { Check, SquareTerminal, Trophy, X } from "lucide-react";
import { useAgentNames } from "../api/agents";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { duration, paragraphs, plainText } from "../ui/format";
import { Since } from "../ui/time";
import { PullLink } from "../work/PullLink";
import { Thread } from "../transcript/Thread";
import { useTranscript } from "../transcript/useTranscript";
import { Tail } from "../work/Tail";
import { costOf, named, toneOf, wordOf, type Entry } from "./competitions";

interface Props {
  entry: Entry;
  /** Of all who compete, by their numbers. */
  labels: Map<number, string>;
  won: boolean;
  amount: (cost: number) => string;
  /** The competition. */
  fork: string;
  /** Whether the competition goes on, so that its sandboxes exist. */
  open: boolean;
  onPick?: () => void;
}

function EntryCost({ entry, amount }: { entry: Entry; amount: Props["amount"] }) {
  const sum = costOf(entry);
  if (sum === undefined) return "–";
  const agent = entry.agent_cost ?? undefined;
  return (
    <span title={`Sandbox ${amount(entry.cost ?? 0)}, agent ${agent === undefined ? "not reported" : amount(agent)}`}>
      {amount(sum)}
    </span>
  );
}

function Figures({ entry, amount }: { entry: Entry; amount: Props["amount"] }) {
  const took = entry.duration_ms ?? undefined;
  const rows: [string, React.ReactNode][] = [
    [
      "Time",
      took !== undefined ? duration(took) : entry.started_at && !entry.ended_at ? <Since at={entry.started_at} /> : "–",
    ],
    ["Cost", <EntryCost key="cost" entry={entry} amount={amount} />],
    [
      "Changes",
      entry.diff ? (
        <>
          <span className="text-ok">+{entry.diff.added}</span> <span className="text-bad">−{entry.diff.removed}</span>{" "}
          <span className="text-dim">in {entry.diff.files === 1 ? "1 file" : `${entry.diff.files} files`}</span>
        </>
      ) : (
        "–"
      ),
    ],
    [
      "Checks",
      entry.check ? (
        <span className={classes("inline-flex items-center gap-1", entry.check.passed ? "text-ok" : "text-bad")}>
          {entry.check.passed ? <Check aria-hidden className="size-3.5" /> : <X aria-hidden className="size-3.5" />}
          {entry.check.passed ? "passed" : `failed${entry.check.exit_code ? ` (${entry.check.exit_code})` : ""}`}
        </span>
      ) : entry.state === "checking" ? (
        "running"
      ) : (
        "–"
      ),
    ],
  ];
  if (entry.input_tokens || entry.output_tokens)
    rows.push(["Tokens", `${entry.input_tokens ?? 0} in, ${entry.output_tokens ?? 0} out`]);
  return (
    <dl className="grid grid-cols-2 gap-x-4 gap-y-2 px-4 py-3">
      {rows.map(([name, value]) => (
        <div key={name} className="min-w-0">
          <dt className="text-xs text-dim">{name}</dt>
          <dd className="truncate">{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** What the agent of an entry does, as a conversation if the server keeps one. */
function EntryWork({ entry, fork, open }: { entry: Entry; fork: string; open: boolean }) {
  const live = open && !entry.ended_at;
  const transcript = useTranscript(`/api/v1/sandboxes/fork/${fork}/entries/${entry.number}/transcript`, live);
  const label = `Work of fork ${entry.number}`;
  if (transcript.state === "missing" || transcript.state === "failed")
    return <Tail execution={entry.execution_id ?? ""} label={label} className="h-52 flex-1" />;
  return <Thread transcript={transcript} label={label} turns={false} className="h-64 flex-1" />;
}

export function EntryCard({ entry, labels, won, amount, fork, open, onPick }: Props) {
  const agent = useAgentNames().get(entry.agent_id);
  const label = plainText(entry.label);
  const checkFailed = entry.state === "done" && entry.check?.passed === false;
  const who = [agent === entry.label ? undefined : agent, entry.model]
    .filter(Boolean)
    .map((text) => plainText(text ?? ""))
    .join(", ");
  return (
    <section
      aria-label={`Fork ${entry.number}: ${label}`}
      className={classes("flex min-w-0 flex-col rounded-lg border bg-surface", won ? "border-ok" : "border-line")}
    >
      <header className="flex min-h-11 flex-wrap items-center gap-2 border-b border-line px-4 py-2">
        <h2 className="min-w-0 flex-1 truncate font-semibold">
          <span className="text-dim">{entry.number}</span> {label}
          {who !== "" && <span className="block truncate text-xs font-normal text-dim">{who}</span>}
        </h2>
        {won ? (
          <Badge tone="ok">
            <Trophy aria-hidden className="size-3" />
            winner
          </Badge>
        ) : (
          entry.rank && <Badge tone={entry.rank === 1 ? "info" : "dim"}>place {entry.rank}</Badge>
        )}
        <Badge tone={toneOf(entry)}>{checkFailed ? "check failed" : wordOf(entry.state)}</Badge>
      </header>
      <Figures entry={entry} amount={amount} />
      {entry.reasons.length > 0 && (
        <ul aria-label="Reasons for its place" className="space-y-1 border-t border-line px-4 py-3">
          {entry.reasons.map((reason, at) => (
            <li key={at} className="flex gap-2 before:text-dim before:content-['·']">
              {plainText(named(reason, labels))}
            </li>
          ))}
        </ul>
      )}
      {entry.error && (
        <p className="border-t border-line px-4 py-3 break-words text-bad">{plainText(entry.error.message)}</p>
      )}
      {entry.summary && (
        <p className="border-t border-line px-4 py-3 break-words whitespace-pre-wrap">
          {paragraphs(entry.summary).slice(0, 600)}
        </p>
      )}
      {entry.check?.execution_id && (
        <details open={!entry.check.passed && entry.state === "done"} className="border-t border-line px-4 py-2">
          <summary className={entry.check.passed ? "text-dim" : "text-bad"}>Output of the check</summary>
          <Tail
            execution={entry.check.execution_id}
            label={`Output of the check of fork ${entry.number}`}
            className="mt-1 max-h-52 rounded-md"
          />
        </details>
      )}
      {entry.prompt && (
        <details className="border-t border-line px-4 py-2">
          <summary className="text-dim">Own prompt</summary>
          <p className="mt-1 whitespace-pre-wrap">{paragraphs(entry.prompt)}</p>
        </details>
      )}
      <div className="flex flex-1 flex-col border-t border-line">
        {entry.execution_id ? (
          <EntryWork entry={entry} fork={fork} open={open} />
        ) : (
          <p className="px-4 py-3 text-dim">The agent has not started.</p>
        )}
      </div>
      <footer className="flex min-h-11 flex-wrap items-center justify-end gap-3 border-t border-line px-4 py-2">
        {entry.pull_url && <PullLink url={entry.pull_url} />}
        {entry.sandbox_id && open && ["forked", "working", "checking", "done"].includes(entry.state) && (
          <Link
            to="/sandboxes/$id/terminal"
            params={{ id: entry.sandbox_id }}
            className="inline-flex items-center gap-1.5 text-accent underline"
          >
            <SquareTerminal aria-hidden className="size-4" />
            Terminal
          </Link>
        )}
        {onPick !== undefined && (
          <Button
            tone={entry.rank === 1 ? "primary" : "plain"}
            disabled={!entry.can_win}
            title={entry.can_win ? undefined : "It has no changes to merge"}
            onClick={onPick}
            icon={<Trophy aria-hidden className="size-4" />}
          >
            Pick {label.slice(0, 24)}
          </Button>
        )}
      </footer>
    </section>
  );
}
