// Two attempts at a task side by side: their figures, and what changed from one to the other.
import { useMemo, useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { api, take } from "../api/client";
import { usePrices } from "../api/prices";
import { DiffView } from "../repositories/DiffView";
import { Empty, Loaded } from "../ui/feedback";
import { SelectField } from "../ui/fields";
import { money, plainText } from "../ui/format";
import { Card } from "../ui/layout";
import { SideBySide, type Figures } from "../work/SideBySide";
import { checksOf, useExecutions } from "../work/executions";
import { useCost, type Attempt } from "./AttemptCard";
import type { Task } from "./tasks";

function useFigures(attempt: Attempt, task: Task): Figures {
  const currency = usePrices()?.currency ?? "USD";
  const { sandbox, agent } = useCost(attempt);
  const executions = useExecutions(attempt.sandbox_id);
  const check = checksOf(executions.data?.items ?? [], task.check_command ?? "").at(-1);
  const sum = sandbox === undefined && agent === undefined ? undefined : (sandbox ?? 0) + (agent ?? 0);
  return {
    name: `Attempt ${attempt.number}${attempt.model ? `, ${plainText(attempt.model)}` : ""}`,
    check: task.check_command && check !== undefined ? { passed: check.exit_code === 0 } : undefined,
    time:
      attempt.started_at && attempt.ended_at
        ? Date.parse(attempt.ended_at) - Date.parse(attempt.started_at)
        : undefined,
    cost: sum === undefined ? undefined : money(sum, currency),
    tokens: (attempt.input_tokens ?? 0) + (attempt.output_tokens ?? 0) || undefined,
  };
}

function Pair({ task, left, right }: { task: Task; left: Attempt; right: Attempt }) {
  const [a, b] = [useFigures(left, task), useFigures(right, task)];
  const repository = task.repository?.split("/").at(-1) ?? "";
  const between = { from: left.commit ?? "", to: right.commit ?? "" };
  const known = between.from !== "" && between.to !== "" && repository !== "";
  const diff = useQuery({
    queryKey: ["compare", repository, between.from, between.to],
    queryFn: () =>
      take(api.GET("/api/v1/repositories/{repository}/compare", { params: { path: { repository }, query: between } })),
    enabled: known && between.from !== between.to,
    staleTime: Number.POSITIVE_INFINITY,
  });
  const source = useMemo(() => ({ repository, commit: between.to }), [repository, between.to]);
  return (
    <>
      <SideBySide left={a} right={b} />
      <div className="p-4">
        {!known ? (
          <Empty title="Nothing to compare">
            {left.commit ? `Attempt ${right.number}` : `Attempt ${left.number}`} pushed no commit.
          </Empty>
        ) : between.from === between.to ? (
          <Empty title="Both ended at the same commit" />
        ) : (
          <Loaded query={diff} what="Comparing">
            {(shown) => <DiffView diff={shown} source={source} />}
          </Loaded>
        )}
      </div>
    </>
  );
}

export function CompareAttempts({ task, attempts }: { task: Task; attempts: Attempt[] }) {
  // Newest first; the two newest are the usual question.
  const [chosen, setChosen] = useState<{ left?: number; right?: number }>({});
  const right = attempts.find(({ number }) => number === chosen.right) ?? attempts[0];
  const left =
    attempts.find((one) => one.number === chosen.left && one !== right) ?? attempts.find((one) => one !== right);
  if (left === undefined || right === undefined) return null;
  const choose = (label: string, value: number, change: (number: number) => void) => (
    <SelectField label={label} hideLabel value={value} onChange={(event) => change(Number(event.target.value))}>
      {attempts.map(({ number }) => (
        <option key={number} value={number}>{`Attempt ${number}`}</option>
      ))}
    </SelectField>
  );
  // Choosing one for both sides swaps them.
  const pick = (side: "left" | "right") => (number: number) => {
    const now = { left: left.number, right: right.number };
    const other = side === "left" ? "right" : "left";
    setChosen({ ...now, ...(number === now[other] ? { [other]: now[side] } : {}), [side]: number });
  };
  return (
    <Card
      title="Compare attempts"
      actions={
        <span className="flex flex-wrap items-center gap-2">
          {choose("From", left.number, pick("left"))}
          <span className="text-dim">to</span>
          {choose("To", right.number, pick("right"))}
        </span>
      }
    >
      <Pair task={task} left={left} right={right} />
    </Card>
  );
}
