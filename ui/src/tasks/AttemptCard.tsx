// One attempt: its steps with what came of them, and what it has cost.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Check, Circle, LoaderCircle, RotateCcw, X } from "lucide-react";
import { useAgentNames } from "../api/agents";
import { api, take, type Schemas } from "../api/client";
import { usePrices } from "../api/prices";
import { useSandbox } from "../api/sandboxes";
import { Badge, type Tone } from "../ui/Badge";
import { Button } from "../ui/Button";
import { Loaded } from "../ui/feedback";
import { duration, money, plainText } from "../ui/format";
import { Card, Facts, Meter } from "../ui/layout";
import { Markdown } from "../ui/Markdown";
import { Since } from "../ui/time";
import { PullLink } from "../work/PullLink";
import { failedSteps, isShown, nameOfStep } from "./steps";
import type { Task } from "./tasks";

export type Attempt = Schemas["Attempt"];
type Step = Schemas["RunStep"];

const RUN_TONES: Record<string, Tone> = {
  queued: "dim",
  running: "info",
  done: "ok",
  failed: "bad",
  cancelled: "dim",
  stuck: "bad",
};

const MARKS: Record<string, [typeof Check, string]> = {
  under_way: [LoaderCircle, "animate-spin text-accent"],
  done: [Check, "text-ok"],
  failed: [X, "text-bad"],
  undone: [RotateCcw, "text-dim"],
  undo_failed: [X, "text-bad"],
};

const WORDS: Record<string, string> = { under_way: "in progress", undone: "cleaned up", undo_failed: "not cleaned up" };

function StepLine({ step, failed }: { step: Step; failed: boolean }) {
  const state = failed ? "failed" : step.state;
  const [Mark, look] = MARKS[state] ?? [Circle, "text-dim"];
  return (
    <li className="flex break-inside-avoid flex-wrap items-center gap-x-3 gap-y-1 px-4 py-1">
      <Mark aria-hidden className={`size-4 shrink-0 ${look}`} />
      <span className="sr-only">{WORDS[state] ?? state}</span>
      <span>{plainText(nameOfStep(step.name))}</span>
      {state === "undone" && <span className="text-xs text-dim">cleaned up</span>}
      {step.failures > 0 && (
        <span className="text-xs text-warn">
          failed {step.failures === 1 ? "once" : `${step.failures} times`}
          {step.state === "done" && ", then succeeded"}
        </span>
      )}
      <span className="ml-auto text-dim tabular-nums">
        {step.ended_at ? (
          duration(Date.parse(step.ended_at) - Date.parse(step.started_at))
        ) : (
          <Since at={step.started_at} />
        )}
      </span>
      {step.error && <p className="w-full pl-7 break-words text-bad">{plainText(step.error.message)}</p>}
    </li>
  );
}

/** What an attempt has cost: its sandbox by the server's prices, its agent by its own account. */
export function useCost(attempt: Attempt): { sandbox?: number; agent?: number } {
  const { data } = useQuery({
    queryKey: ["usage", "sandbox", attempt.sandbox_id],
    queryFn: () =>
      take(
        api.GET("/api/v1/usage", {
          params: {
            query: { group: "sandbox", sandbox: attempt.sandbox_id ?? "", from: attempt.created_at.slice(0, 10) },
          },
        }),
      ),
    enabled: Boolean(attempt.sandbox_id),
    refetchInterval: attempt.ended_at ? false : 5000,
  });
  return { sandbox: data?.items[0]?.cost, agent: attempt.agent_cost ?? undefined };
}

function Cost({ attempt, budget }: { attempt: Attempt; budget: number | null | undefined }) {
  const { sandbox, agent } = useCost(attempt);
  const currency = usePrices()?.currency ?? "USD";
  if (sandbox === undefined && agent === undefined) return "–";
  const sum = (sandbox ?? 0) + (agent ?? 0);
  return (
    <>
      <span
        title={`Sandbox ${money(sandbox ?? 0, currency)}, agent ${agent === undefined ? "not reported" : money(agent, "USD")}`}
      >
        {money(sum, currency)}
        {budget ? ` of ${money(budget, currency)}` : ""}
      </span>
      {budget ? <Meter value={sum} top={budget} label="Spent of the task's budget" /> : null}
    </>
  );
}

function Ways({ sandbox }: { sandbox: string }) {
  const look = "text-accent underline";
  const state = useSandbox(sandbox).data?.state ?? "";
  const live = ["creating", "running", "paused", "pausing", "resuming"].includes(state);
  return (
    <span className="flex flex-wrap gap-x-2">
      {live && (
        <>
          <Link to="/sandboxes/$id" params={{ id: sandbox }} className={look}>
            overview
          </Link>
          <Link to="/sandboxes/$id/files" params={{ id: sandbox }} className={look}>
            files
          </Link>
        </>
      )}
      <Link to="/sandboxes/$id/logs" params={{ id: sandbox }} className={look}>
        log
      </Link>
      {!live && state !== "" && <span className="text-dim">(ended)</span>}
    </span>
  );
}

function Inside({ attempt, task }: { attempt: Attempt; task: Task }) {
  const names = useAgentNames();
  const steps = useQuery({
    queryKey: ["tasks", "steps", attempt.run_id],
    queryFn: () => take(api.GET("/api/v1/runs/{run}/steps", { params: { path: { run: attempt.run_id } } })),
  });
  const failed = failedSteps(steps.data ?? [], attempt.error);
  const tokens =
    attempt.input_tokens || attempt.output_tokens
      ? `${attempt.input_tokens ?? 0} in, ${attempt.output_tokens ?? 0} out`
      : "–";
  return (
    <>
      <Facts
        facts={[
          ["Agent", plainText(attempt.agent_id ? (names.get(attempt.agent_id) ?? attempt.agent_id) : "–")],
          ["Model", plainText(attempt.model ?? "") || "the agent's default"],
          [
            "Time",
            !attempt.started_at ? (
              "queued"
            ) : attempt.ended_at ? (
              duration(Date.parse(attempt.ended_at) - Date.parse(attempt.started_at))
            ) : (
              <Since key="took" at={attempt.started_at} />
            ),
          ],
          ["Cost so far", <Cost key="cost" attempt={attempt} budget={task.budget} />],
          ["Tokens", tokens],
          [
            "Branch",
            <code key="branch" className="font-mono text-xs">
              {plainText(attempt.branch ?? "–")}
            </code>,
          ],
          ["Sandbox", attempt.sandbox_id ? <Ways key="sandbox" sandbox={attempt.sandbox_id} /> : "–"],
          ...(attempt.pull_url
            ? [["Pull request", <PullLink key="pull" url={attempt.pull_url} />] as [string, React.ReactNode]]
            : []),
        ]}
      />
      {attempt.fork_id && (
        <p className="border-t border-line px-4 py-3">
          Several agents compete for it:{" "}
          <Link to="/forks/$fork" params={{ fork: attempt.fork_id }} className="text-accent underline">
            see them side by side
          </Link>
        </p>
      )}
      {attempt.summary && <Markdown text={attempt.summary} className="border-t border-line px-4 py-3" />}
      {attempt.error && (
        <p className="border-t border-line px-4 py-3 break-words text-bad">
          {plainText(attempt.error.message)}
          {attempt.error.step && ` (${plainText(nameOfStep(attempt.error.step))})`}
        </p>
      )}
      <Loaded query={steps}>
        {(lines) =>
          lines.length === 0 ? null : (
            <ol
              aria-label={`Steps of attempt ${attempt.number}`}
              className="border-t border-line py-1.5 md:columns-2 md:gap-0"
            >
              {lines.filter(isShown).map((step) => (
                <StepLine key={step.name} step={step} failed={failed.has(step.name)} />
              ))}
            </ol>
          )
        }
      </Loaded>
    </>
  );
}

export function AttemptCard({ attempt, task, open }: { attempt: Attempt; task: Task; open: boolean }) {
  const [shown, setShown] = useState(open);
  return (
    <Card
      title={`Attempt ${attempt.number}`}
      actions={
        <div className="flex items-center gap-2">
          <Badge tone={RUN_TONES[attempt.state] ?? "dim"}>{plainText(attempt.state).replaceAll("_", " ")}</Badge>
          <Button tone="ghost" aria-expanded={shown} onClick={() => setShown(!shown)}>
            {shown ? "Less" : "More"}
          </Button>
        </div>
      }
    >
      {shown && <Inside attempt={attempt} task={task} />}
    </Card>
  );
}
