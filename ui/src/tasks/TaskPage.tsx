// The work on a task: what is wanted, the attempts with their steps, what they changed, and what was said.
import { useState, type FormEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { Play, Square, TriangleAlert } from "lucide-react";
import { toast } from "sonner";
import { useAgentNames, useAgents } from "../api/agents";
import { api, take, type Schemas } from "../api/client";
import { may } from "../api/session";
import { DiffView } from "../repositories/DiffView";
import { PULL_TONES } from "../repositories/Repository";
import { Badge, type Tone } from "../ui/Badge";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Confirm, Dialog } from "../ui/Dialog";
import { Empty, ErrorBox, Loaded, Loading, toastError } from "../ui/feedback";
import { CheckField, SelectField, TextArea, TextField } from "../ui/fields";
import { duration, moment, plainText } from "../ui/format";
import { Card, Facts, Page } from "../ui/layout";
import { Ago, Since } from "../ui/time";
import { PRIORITY_TONES } from "./Board";
import { COLUMNS, useFreshTasks, useTask, type Task } from "./tasks";

type Attempt = Schemas["Attempt"];
type Step = Schemas["RunStep"];

const STEP_TONES: Record<string, Tone> = { under_way: "warn", done: "ok", failed: "bad", undone: "dim", undo_failed: "bad" };
const paragraphs = (text: string) => text.split("\n").map(plainText).join("\n");

function StepLine({ step }: { step: Step }) {
  return (
    <li className="flex flex-wrap items-center gap-3 px-4 py-1.5">
      <Badge tone={STEP_TONES[step.state] ?? "dim"}>{step.state.replaceAll("_", " ")}</Badge>
      <span className="font-mono">{plainText(step.name)}</span>
      {step.starts > 1 && <span className="text-dim">begun {step.starts} times</span>}
      {step.error && <span className="min-w-0 flex-1 break-words text-bad">{plainText(step.error.message)}</span>}
      <span className="ml-auto text-dim">
        {step.ended_at ? duration(Date.parse(step.ended_at) - Date.parse(step.started_at)) : <Since at={step.started_at} />}
      </span>
    </li>
  );
}

function AttemptCard({ attempt, open }: { attempt: Attempt; open: boolean }) {
  const names = useAgentNames();
  const [shown, setShown] = useState(open);
  const running = !attempt.ended_at;
  const steps = useQuery({
    queryKey: ["tasks", "steps", attempt.run_id],
    queryFn: () => take(api.GET("/api/v1/runs/{run}/steps", { params: { path: { run: attempt.run_id } } })),
    enabled: shown,
  });
  const tokens = attempt.input_tokens || attempt.output_tokens ? `${attempt.input_tokens ?? 0} in, ${attempt.output_tokens ?? 0} out` : "–";
  return (
    <Card
      title={`Attempt ${attempt.number}`}
      actions={
        <div className="flex items-center gap-2">
          <Badge tone={running ? "warn" : attempt.error ? "bad" : "ok"}>{plainText(attempt.state).replaceAll("_", " ")}</Badge>
          <Button tone="ghost" aria-expanded={shown} onClick={() => setShown(!shown)}>
            {shown ? "Less" : "More"}
          </Button>
        </div>
      }
    >
      {shown && (
        <>
          <Facts
            facts={[
              ["Agent", attempt.agent_id ? (names.get(attempt.agent_id) ?? attempt.agent_id) : "–"],
              ["Model", plainText(attempt.model ?? "") || "the agent's own"],
              ["Begun", attempt.started_at ? moment(attempt.started_at) : "waits for its turn"],
              ["Took", attempt.started_at ? duration((attempt.ended_at ? Date.parse(attempt.ended_at) : Date.now()) - Date.parse(attempt.started_at)) : "–"],
              ["Tokens, as it says", tokens],
              ["Branch", <code key="branch" className="font-mono text-xs">{plainText(attempt.branch ?? "–")}</code>],
              [
                "Sandbox",
                attempt.sandbox_id ? (
                  <span key="sandbox" className="flex flex-wrap gap-2">
                    <Link to="/sandboxes/$id/terminal" params={{ id: attempt.sandbox_id }} className="text-accent underline">
                      terminal
                    </Link>
                    <Link to="/sandboxes/$id/logs" params={{ id: attempt.sandbox_id }} className="text-accent underline">
                      log
                    </Link>
                    <Link to="/sandboxes/$id/files" params={{ id: attempt.sandbox_id }} className="text-accent underline">
                      files
                    </Link>
                  </span>
                ) : (
                  "–"
                ),
              ],
            ]}
          />
          {attempt.summary && <p className="border-t border-line px-4 py-3 whitespace-pre-wrap">{paragraphs(attempt.summary)}</p>}
          {attempt.error && (
            <p className="border-t border-line px-4 py-3 text-bad">
              {plainText(attempt.error.message)}
              {attempt.error.step && ` (at ${plainText(attempt.error.step)})`}
            </p>
          )}
          <Loaded query={steps}>
            {(lines) => (
              <ol aria-label={`Steps of attempt ${attempt.number}`} className="divide-y divide-line border-t border-line">
                {lines.map((step) => (
                  <StepLine key={step.name} step={step} />
                ))}
              </ol>
            )}
          </Loaded>
        </>
      )}
    </Card>
  );
}

function Changes({ task }: { task: Task }) {
  // A repository of this server's is named by its name; what was before a slash says where it is.
  const repository = task.repository?.split("/").at(-1) ?? "";
  const pulls = useQuery({
    queryKey: ["repositories", repository, "of-branch", task.branch],
    queryFn: () =>
      take(api.GET("/api/v1/repositories/{repository}/pulls", { params: { path: { repository }, query: { head: task.branch ?? "" } } })),
    enabled: repository !== "" && Boolean(task.branch),
    retry: false,
  });
  const pull = pulls.data?.items[0];
  const diff = useQuery({
    queryKey: ["repositories", repository, "pull", pull?.number, "diff"],
    queryFn: () => take(api.GET("/api/v1/repositories/{repository}/pulls/{number}/diff", { params: { path: { repository, number: pull?.number ?? 0 } } })),
    enabled: pull !== undefined,
  });
  const fresh = useFreshTasks();
  if (pull === undefined) return null;
  return (
    <>
      <Card
        title={
          <Link to="/repositories/$repository/pulls/$number" params={{ repository, number: String(pull.number) }} className="text-accent underline">
            Pull request #{pull.number}
          </Link>
        }
        actions={<Badge tone={PULL_TONES[pull.state] ?? "dim"}>{pull.state}</Badge>}
      >
        <p className="px-4 py-3">{plainText(pull.title)}</p>
      </Card>
      <Loaded query={diff} what="Comparing">
        {(shown) => (
          <DiffView
            diff={shown}
            remarks={[]}
            onRemark={
              may("write")
                ? async ({ path, line, body }) => {
                    // A comment here is for the agent: its next turn.
                    try {
                      await take(api.POST("/api/v1/tasks/{task}/messages", { params: { path: { task: task.id } }, body: { body, file: path, line } }));
                      toast.success("The agent will read it");
                      await fresh();
                    } catch (error) {
                      toastError(error);
                      throw error;
                    }
                  }
                : undefined
            }
          />
        )}
      </Loaded>
    </>
  );
}

function Messages({ task }: { task: Task }) {
  const fresh = useFreshTasks();
  const [body, setBody] = useState("");
  const [start, setStart] = useState(false);
  const query = useQuery({
    queryKey: ["tasks", "messages", task.id],
    queryFn: () => take(api.GET("/api/v1/tasks/{task}/messages", { params: { path: { task: task.id }, query: { limit: 200 } } })),
  });
  const say = useMutation({
    mutationFn: () => take(api.POST("/api/v1/tasks/{task}/messages", { params: { path: { task: task.id } }, body: { body, start } })),
    onSuccess: () => {
      setBody("");
      void fresh();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    say.mutate();
  };
  return (
    <Card title="Said to the agent" actions={<CopyAs recipe={{ curl: curl("POST", `/api/v1/tasks/${task.id}/messages`, { body: body || "why?" }) }} />}>
      <Loaded query={query}>
        {({ items }) =>
          items.length === 0 ? (
            <Empty title="Nothing was said yet" />
          ) : (
            <ol className="divide-y divide-line">
              {items.map((message) => (
                <li key={message.number} className="px-4 py-3">
                  <p className="flex gap-2 text-dim">
                    <span className="font-medium text-ink">{plainText(message.author)}</span>
                    <Ago at={message.created_at} />
                  </p>
                  <p className="mt-1 whitespace-pre-wrap">{paragraphs(message.body)}</p>
                </li>
              ))}
            </ol>
          )
        }
      </Loaded>
      {may("write") && (
        <form onSubmit={submit} className="space-y-3 border-t border-line p-4">
          <TextArea label="Say something" required value={body} onChange={(event) => setBody(event.target.value)} className="font-sans" hint="While it works this is its next turn; later it is the next attempt's." />
          <CheckField label="And start another attempt" checked={start} onChange={(event) => setStart(event.target.checked)} />
          {say.error !== null && <ErrorBox error={say.error} />}
          <div className="flex justify-end">
            <Button type="submit" tone="primary" busy={say.isPending}>
              Say it
            </Button>
          </div>
        </form>
      )}
    </Card>
  );
}

function StartDialog({ task, onClose }: { task: Task; onClose: () => void }) {
  const fresh = useFreshTasks();
  const agents = useAgents();
  const [agent, setAgent] = useState(task.agent_id ?? "");
  const [model, setModel] = useState(task.model ?? "");
  const body = { ...(agent === "" ? {} : { agent_id: agent }), ...(model === "" ? {} : { model }) };
  const start = useMutation({
    mutationFn: () => take(api.POST("/api/v1/tasks/{task}/start", { params: { path: { task: task.id } }, body })),
    onSuccess: async () => {
      await fresh();
      onClose();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    start.mutate();
  };
  return (
    <Dialog open onClose={onClose} title={task.attempts > 0 ? "Try again" : "Start"}>
      <form onSubmit={submit} className="space-y-4">
        <SelectField label="Agent" required value={agent} onChange={(event) => setAgent(event.target.value)}>
          <option value="">Choose one</option>
          {agents.data?.items.map((one) => (
            <option key={one.id} value={one.id}>
              {plainText(one.name)}
            </option>
          ))}
        </SelectField>
        <TextField label="Model" value={model} onChange={(event) => setModel(event.target.value)} placeholder="the agent's own" />
        {start.error !== null && <ErrorBox error={start.error} />}
        <div className="flex justify-end gap-2">
          <CopyAs recipe={{ curl: curl("POST", `/api/v1/tasks/${task.id}/start`, body) }} />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={start.isPending}>
            Start
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

export function TaskPage() {
  const { task: id } = useParams({ from: "/shell/tasks/$task" });
  const queries = useQueryClient();
  const fresh = useFreshTasks();
  const query = useTask(id);
  const attempts = useQuery({
    queryKey: ["tasks", "attempts", id],
    queryFn: () => take(api.GET("/api/v1/tasks/{task}/attempts", { params: { path: { task: id } } })),
  });
  const history = useQuery({
    queryKey: ["tasks", "history", id],
    queryFn: () => take(api.GET("/api/v1/tasks/{task}/history", { params: { path: { task: id } } })),
  });
  const names = useAgentNames();
  const [starting, setStarting] = useState(false);
  const [cancelling, setCancelling] = useState(false);
  const move = useMutation({
    mutationFn: (state: Task["state"]) => take(api.PATCH("/api/v1/tasks/{task}", { params: { path: { task: id } }, body: { state } })),
    onSuccess: (next) => queries.setQueryData(["tasks", "one", id], next),
    onError: toastError,
    onSettled: fresh,
  });
  const task = query.data;
  if (task === undefined) return query.error === null ? <Loading /> : <ErrorBox error={query.error} className="m-5" />;
  const newest = [...(attempts.data ?? [])].sort((a, b) => b.number - a.number);
  const working = newest[0] !== undefined && !newest[0].ended_at;
  const allowed = may("write");
  return (
    <Page
      title={
        <span className="flex flex-wrap items-center gap-2">
          <Link to="/board" className="text-dim hover:text-ink">
            Board
          </Link>
          <span aria-hidden className="text-dim">
            /
          </span>
          {plainText(task.title)}
        </span>
      }
      actions={
        <>
          <SelectField label="State" hideLabel value={task.state} disabled={!allowed || working} onChange={(event) => move.mutate(event.target.value as Task["state"])}>
            {COLUMNS.map((column) => (
              <option key={column.state} value={column.state}>
                {column.name}
              </option>
            ))}
          </SelectField>
          {working ? (
            <Button tone="danger" disabled={!allowed} onClick={() => setCancelling(true)} icon={<Square aria-hidden className="size-4" />}>
              Cancel
            </Button>
          ) : (
            <Button tone="primary" disabled={!allowed} onClick={() => setStarting(true)} icon={<Play aria-hidden className="size-4" />}>
              {task.attempts > 0 ? "Try again" : "Start"}
            </Button>
          )}
        </>
      }
    >
      {task.needs_attention && (
        <div role="status" className="flex gap-3 rounded-lg border border-warn/40 bg-warn-soft p-4">
          <TriangleAlert aria-hidden className="mt-0.5 size-4 shrink-0 text-warn" />
          <p className="break-words">
            <span className="font-medium text-warn">{plainText(task.needs_attention.code).replaceAll("_", " ")}.</span> {plainText(task.needs_attention.message)}
          </p>
        </div>
      )}
      <Card>
        <Facts
          facts={[
            ["Priority", <Badge key="priority" tone={PRIORITY_TONES[task.priority]}>{task.priority}</Badge>],
            ["Repository", plainText(task.repository ?? "") || "none yet"],
            ["From branch", plainText(task.base_branch ?? "") || "the default"],
            ["Agent", task.agent_id ? (names.get(task.agent_id) ?? task.agent_id) : "nobody yet"],
            ["Model", plainText(task.model ?? "") || "the agent's own"],
            ["Check", task.check_command ? <code key="check" className="font-mono text-xs">{plainText(task.check_command)}</code> : "none"],
            ["Budget", task.budget ?? "none"],
            ["Labels", task.labels.map(plainText).join(", ") || "–"],
            ["Made", <Ago key="made" at={task.created_at} />],
          ]}
        />
        {task.description !== "" && <p className="border-t border-line p-4 whitespace-pre-wrap">{paragraphs(task.description)}</p>}
      </Card>
      {newest.map((attempt, at) => (
        <AttemptCard key={attempt.run_id} attempt={attempt} open={at === 0} />
      ))}
      {newest.length === 0 && attempts.data !== undefined && (
        <Card title="Attempts">
          <Empty title="Nobody has tried yet" />
        </Card>
      )}
      <Changes task={task} />
      <Messages task={task} />
      <Card title="History">
        <Loaded query={history}>
          {(moves) => (
            <ol className="divide-y divide-line">
              {[...moves].reverse().map((step) => (
                <li key={`${step.at}${step.to}`} className="flex flex-wrap gap-3 px-4 py-2">
                  <span className="font-medium">{step.to.replaceAll("_", " ")}</span>
                  <span className="flex-1 text-dim">{plainText(step.reason)}</span>
                  <time dateTime={step.at} className="text-dim">
                    {moment(step.at)}
                  </time>
                </li>
              ))}
            </ol>
          )}
        </Loaded>
      </Card>
      {starting && <StartDialog task={task} onClose={() => setStarting(false)} />}
      <Confirm
        open={cancelling}
        onClose={() => setCancelling(false)}
        title="Cancel this attempt?"
        action="Cancel it"
        danger
        onConfirm={async () => {
          await take(api.POST("/api/v1/tasks/{task}/cancel", { params: { path: { task: id } }, body: {} }));
          await fresh();
        }}
      >
        The agent is stopped and its sandbox is put away. What it pushed stays.
      </Confirm>
    </Page>
  );
}
