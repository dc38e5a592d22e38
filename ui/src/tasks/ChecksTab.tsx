// Did it pass: the runs of the task's check with their output, and the checks of its pull request.
import { useState } from "react";
import { CircleCheck, CircleX, LoaderCircle } from "lucide-react";
import { Checks } from "../repositories/Merge";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { Empty } from "../ui/feedback";
import { duration, plainText } from "../ui/format";
import { Card } from "../ui/layout";
import { Ago } from "../ui/time";
import { checksOf, useExecutions, type Execution } from "../work/executions";
import { Tail } from "../work/Tail";
import type { Attempt } from "./AttemptCard";
import { usePull } from "./Changes";
import type { Task } from "./tasks";

function Run({ run, name, open }: { run: Execution; name: string; open: boolean }) {
  const [shown, setShown] = useState(open);
  const going = run.state === "running";
  const passed = run.exit_code === 0;
  const Mark = going ? LoaderCircle : passed ? CircleCheck : CircleX;
  return (
    <li>
      <div className="flex flex-wrap items-center gap-x-3 gap-y-1 px-4 py-2">
        <Mark
          aria-hidden
          className={`size-4 shrink-0 ${going ? "animate-spin text-accent" : passed ? "text-ok" : "text-bad"}`}
        />
        <span className="font-medium">
          {name}:{" "}
          {going ? "running" : passed ? "passed" : `failed${run.exit_code ? ` (exit code ${run.exit_code})` : ""}`}
        </span>
        <span className="text-dim">
          {run.ended_at && `${duration(Date.parse(run.ended_at) - Date.parse(run.started_at))}, `}
          <Ago at={run.started_at} />
        </span>
        <span className="flex-1" />
        <Button tone="ghost" aria-expanded={shown} onClick={() => setShown(!shown)}>
          {shown ? "Hide the output" : "Show the output"}
        </Button>
      </div>
      {shown && <Tail execution={run.id} label={`Output of the check: ${name}`} className="max-h-96" />}
    </li>
  );
}

function OfAttempt({ attempt, command, open }: { attempt: Attempt; command: string; open: boolean }) {
  const executions = useExecutions(attempt.sandbox_id);
  const runs = checksOf(executions.data?.items ?? [], command).reverse();
  // A check that fails is the agent's next turn, and runs again.
  const name = (at: number) => `Attempt ${attempt.number}${runs.length > 1 ? `, check ${runs.length - at}` : ""}`;
  return runs.map((run, at) => (
    <Run key={run.id} run={run} name={name(at)} open={open && at === 0 && run.exit_code !== 0} />
  ));
}

export function ChecksTab({ task, attempts }: { task: Task; attempts: Attempt[] }) {
  const { repository, pull } = usePull(task);
  const command = task.check_command ?? "";
  return (
    <div className="space-y-4">
      <Card
        title="Check"
        actions={command === "" ? undefined : <Badge className="font-mono">{plainText(command).slice(0, 80)}</Badge>}
      >
        {command === "" ? (
          <Empty title="This task has no check">
            A check is a command that must pass before the pull request is opened. Set it with Edit.
          </Empty>
        ) : attempts.length === 0 ? (
          <Empty title="The check has not run yet" />
        ) : (
          <ul className="divide-y divide-line">
            {attempts.map((attempt, at) => (
              <OfAttempt key={attempt.run_id} attempt={attempt} command={command} open={at === 0} />
            ))}
          </ul>
        )}
      </Card>
      {pull !== undefined && <Checks repository={repository} commit={pull.head_commit} />}
    </div>
  );
}
