// What an attempt waits for a person to say, at its budget or interrupted, with the answers as buttons.
import { useState } from "react";
import { useMutation, useQuery } from "@tanstack/react-query";
import { Hand } from "lucide-react";
import { toast } from "sonner";
import { api, take, type Schemas } from "../api/client";
import { usePrices } from "../api/prices";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { ErrorBox, toastError } from "../ui/feedback";
import { TextField } from "../ui/fields";
import { moment, money, plainText } from "../ui/format";
import { isAsking, nextBudget } from "./asking";
import { useFreshTasks, type Task } from "./tasks";

type Question = Schemas["TaskQuestion"];
type Answer = Schemas["TaskAnswer"];

function title({ kind }: Question): string {
  if (kind === "interrupted") return "Interrupted, waits for you";
  return kind === "budget" ? "The budget is spent" : "A budget of the project is spent";
}

const DONE: Record<Answer, string> = {
  raise: "The agent goes on",
  go_on: "The agent goes on",
  finish: "What is there becomes a draft",
  stop: "The attempt ends",
};

function Answers({ task, question, small }: { task: Task; question: Question; small: boolean }) {
  const fresh = useFreshTasks();
  const currency = usePrices()?.currency ?? "USD";
  const [budget, setBudget] = useState(() => nextBudget(question));
  const give = useMutation({
    mutationFn: (answer: Answer) =>
      take(
        api.POST("/api/v1/tasks/{task}/answer", {
          params: { path: { task: task.id } },
          body: answer === "raise" ? { answer, budget: Number(budget) } : { answer },
        }),
      ),
    onSuccess: (_, answer) => toast.success(DONE[answer]),
    onError: toastError,
    onSettled: fresh,
  });
  const takes = (answer: Answer) => question.answers.includes(answer);
  const fits = Number(budget) > Math.max(question.spent ?? 0, question.budget ?? 0);
  return (
    <form
      className="flex flex-wrap items-end gap-2"
      onSubmit={(event) => {
        event.preventDefault();
        give.mutate(takes("raise") ? "raise" : "go_on");
      }}
    >
      {takes("raise") && (
        <TextField
          label={`New budget (${currency})`}
          hideLabel={small}
          inputMode="decimal"
          className={small ? "w-16" : "w-28"}
          value={budget}
          onChange={(event) => setBudget(event.target.value)}
        />
      )}
      {takes("raise") && (
        <Button
          type="submit"
          tone="primary"
          disabled={!fits}
          busy={give.isPending && give.variables === "raise"}
          title={fits ? undefined : "It must be more than was spent"}
        >
          Raise and continue
        </Button>
      )}
      {takes("go_on") && (
        <Button type="submit" tone="primary" busy={give.isPending && give.variables === "go_on"}>
          Continue
        </Button>
      )}
      <Button
        busy={give.isPending && give.variables === "finish"}
        onClick={() => give.mutate("finish")}
        title="Opens a draft pull request with the work so far"
      >
        Finish as draft
      </Button>
      <Button
        tone="danger"
        busy={give.isPending && give.variables === "stop"}
        onClick={() => give.mutate("stop")}
        title="Pushes the work to its branch and ends the attempt"
      >
        Stop
      </Button>
    </form>
  );
}

/** The question with its answers; nothing if the attempt waits for none. */
export function AttemptQuestion({ task, small = false }: { task: Task; small?: boolean }) {
  const currency = usePrices()?.currency ?? "USD";
  const asked = useQuery({
    queryKey: ["tasks", "question", task.id, task.version],
    queryFn: () => take(api.GET("/api/v1/tasks/{task}/question", { params: { path: { task: task.id } } })),
    enabled: isAsking(task),
    retry: false,
  });
  if (!isAsking(task)) return null;
  if (asked.error !== null) return small ? null : <ErrorBox error={asked.error} />;
  const question = asked.data;
  if (question === undefined) return null;
  const cost =
    question.spent === null || question.spent === undefined
      ? undefined
      : `${money(question.spent, currency)} of ${money(question.budget ?? 0, currency)}`;
  const answers = may("write") && <Answers task={task} question={question} small={small} />;
  // A card shows the cost itself.
  if (small && answers === false) return null;
  if (small) {
    return <div className="space-y-2 rounded-b-md border border-t-0 border-warn/60 bg-warn-soft p-2.5">{answers}</div>;
  }
  return (
    <section
      aria-label="The attempt waits for you"
      className="flex gap-3 rounded-lg border border-warn/40 bg-warn-soft p-4"
    >
      <Hand aria-hidden className="mt-0.5 size-4 shrink-0 text-warn" />
      <div className="min-w-0 flex-1 space-y-3">
        <p className="break-words" role="status">
          <span className="font-medium text-warn">{title(question)}.</span>{" "}
          {question.kind === "interrupted"
            ? "The agent has stopped, and its work stays. Send a message to continue with it."
            : cost === undefined
              ? plainText(question.message)
              : `The task cost ${cost}. Its agent has stopped.`}
        </p>
        {answers}
        <p className="text-xs text-dim">
          The work so far becomes a draft pull request if there is no answer by{" "}
          <time dateTime={question.until}>{moment(question.until)}</time>.
        </p>
      </div>
    </section>
  );
}
