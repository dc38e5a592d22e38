// Forks side by side: who is how far, how they rank and why, what they changed, and who wins.
import { useState } from "react";
import { useMutation } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { Square, Trophy } from "lucide-react";
import { api, take } from "../api/client";
import { usePrices } from "../api/prices";
import { may } from "../api/session";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Confirm } from "../ui/Dialog";
import { ErrorBox, Loading, toastError } from "../ui/feedback";
import { money, paragraphs, plainText } from "../ui/format";
import { Card, Facts, Page } from "../ui/layout";
import { Ago, Until } from "../ui/time";
import { Artifacts } from "../work/Artifacts";
import { PullLink } from "../work/PullLink";
import { Compare } from "./Compare";
import { byRank, isOver, STATE_TONES, useCompetition, totalCost, useFreshForks, wordOf } from "./competitions";
import { EntryCard } from "./EntryCard";

const DOING: Record<string, string> = {
  queued: "Queued.",
  preparing: "Preparing the sandbox that all forks start from.",
  working: "The agents are working.",
  judging: "All agents are done. Ranking the results.",
  publishing: "Pushing the winner and opening its pull request.",
};

export function CompetitionPage() {
  const { fork: id } = useParams({ from: "/shell/forks/$fork" });
  const fresh = useFreshForks();
  const query = useCompetition(id);
  const prices = usePrices();
  const [cancelling, setCancelling] = useState(false);
  const [picking, setPicking] = useState<number>();
  const competition = query.data;
  const pick = useMutation({
    mutationFn: (entry: number) =>
      take(api.POST("/api/v1/sandboxes/fork/{fork}/winner", { params: { path: { fork: id } }, body: { entry } })),
    onSuccess: fresh,
    onError: toastError,
  });
  if (competition === undefined)
    return query.error === null ? <Loading /> : <ErrorBox error={query.error} className="m-5" />;
  const amount = (cost: number) => money(cost, prices?.currency ?? "USD");
  const waiting = competition.state === "waiting";
  const allowed = may("write");
  const labels = new Map(competition.entries.map((entry) => [entry.number, entry.label]));
  const picked = competition.entries.find((entry) => entry.number === picking);
  return (
    <Page
      name={plainText(competition.title)}
      title={
        <span className="flex flex-wrap items-center gap-2">
          <Link to="/forks" className="text-dim hover:text-ink">
            Forks
          </Link>
          <span aria-hidden className="text-dim">
            /
          </span>
          {plainText(competition.title)}
          <Badge tone={STATE_TONES[competition.state]}>{wordOf(competition.state)}</Badge>
        </span>
      }
      actions={
        <>
          <CopyAs recipe={{ curl: curl("GET", `/api/v1/sandboxes/fork/${id}`) }} />
          {!isOver(competition) && (
            <Button
              tone="danger"
              disabled={!allowed}
              onClick={() => setCancelling(true)}
              icon={<Square aria-hidden className="size-4" />}
            >
              Cancel
            </Button>
          )}
        </>
      }
    >
      {waiting && (
        <div role="status" className="flex gap-3 rounded-lg border border-info/40 bg-info-soft p-4">
          <Trophy aria-hidden className="mt-0.5 size-4 shrink-0 text-info" />
          <p>
            <span className="font-medium text-info">Pick a winner.</span> It becomes a pull request; the others stay as
            revisions to look at.
            {competition.decide_by && (
              <>
                {" "}
                The time to decide ends <Until at={competition.decide_by} />.
              </>
            )}
          </p>
        </div>
      )}
      {DOING[competition.state] !== undefined && (
        <p role="status" className="text-dim">
          {DOING[competition.state]}
        </p>
      )}
      {competition.error && (
        <div role="alert" className="rounded-lg border border-bad/40 bg-bad-soft p-4 break-words text-bad">
          {plainText(competition.error.message)}
          {competition.error.step && ` (at ${plainText(competition.error.step)})`}
        </div>
      )}
      <div className="grid gap-3 [grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr))]">
        {[...competition.entries].sort(byRank).map((entry) => (
          <EntryCard
            key={entry.number}
            entry={entry}
            labels={labels}
            won={entry.number === competition.winner}
            amount={amount}
            fork={competition.id}
            open={!isOver(competition)}
            onPick={waiting && allowed ? () => setPicking(entry.number) : undefined}
          />
        ))}
      </div>
      <Compare competition={competition} amount={amount} />
      {competition.run_id && <Artifacts of={{ run_id: competition.run_id }} />}
      <Card title="Details">
        {competition.prompt !== "" && (
          <p className="border-b border-line p-4 whitespace-pre-wrap">{paragraphs(competition.prompt)}</p>
        )}
        <Facts
          facts={[
            ["Repository", plainText(competition.repository ?? "") || "–"],
            [
              "From",
              plainText(
                [competition.base_branch, competition.base_commit?.slice(0, 10)].filter(Boolean).join(" at "),
              ) || "–",
            ],
            [
              "Before the fork",
              competition.prepare_command ? (
                <code className="font-mono text-xs">{plainText(competition.prepare_command)}</code>
              ) : (
                "nothing"
              ),
            ],
            [
              "Check",
              competition.check_command ? (
                <code className="font-mono text-xs">{plainText(competition.check_command)}</code>
              ) : (
                "none"
              ),
            ],
            ["Who decides", competition.rule === "best" ? "the best whose checks passed" : "a person"],
            [
              "Cost so far",
              `${amount(totalCost(competition))}${competition.budget ? ` of ${amount(competition.budget)}` : ""}`,
            ],
            ["Started", <Ago key="begun" at={competition.created_at} />],
            [
              "Task",
              competition.task_id ? (
                <Link
                  key="task"
                  to="/tasks/$task"
                  params={{ task: competition.task_id }}
                  className="text-accent underline"
                >
                  its page
                </Link>
              ) : (
                "none"
              ),
            ],
            ["Pull request", competition.pull_url ? <PullLink key="pull" url={competition.pull_url} /> : "none yet"],
          ]}
        />
      </Card>
      <Confirm
        open={picked !== undefined}
        onClose={() => setPicking(undefined)}
        title={`Let ${plainText(picked?.label ?? "")} win?`}
        action="Pick"
        onConfirm={async () => {
          if (picked !== undefined) await pick.mutateAsync(picked.number);
        }}
      >
        Its branch is pushed and a pull request opened. The sandboxes of all forks end; what the others changed can
        still be looked at.
      </Confirm>
      <Confirm
        open={cancelling}
        onClose={() => setCancelling(false)}
        title="Cancel the competition?"
        action="Cancel the competition"
        danger
        onConfirm={async () => {
          await take(api.POST("/api/v1/sandboxes/fork/{fork}/cancel", { params: { path: { fork: id } }, body: {} }));
          await fresh();
        }}
      >
        All agents are stopped and their sandboxes end.
      </Confirm>
    </Page>
  );
}
