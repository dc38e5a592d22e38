// What a new project needs before an agent can work in it, each made in place. It goes away when all is there, or when asked to.
import { useState, type ReactNode } from "react";
import { useMutation } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Check, Circle, Play, X } from "lucide-react";
import { useAgents } from "../api/agents";
import { may, session } from "../api/session";
import { NewRepository } from "../repositories/NewRepository";
import { useRepositories } from "../repositories/Repositories";
import { AgentDialog } from "../settings/AgentForm";
import { TestDialog } from "../settings/AgentTest";
import { Button } from "../ui/Button";
import { toastError } from "../ui/feedback";
import { DEMO_LABEL, DEMO_REPOSITORY, isDemoAgent } from "./demoNames";
import { useFreshTasks, type Task } from "./tasks";

interface StepProps {
  done: boolean;
  title: string;
  children: ReactNode;
  action: ReactNode;
}

function Step({ done, title, children, action }: StepProps) {
  return (
    <li className="flex items-start gap-3 px-4 py-3">
      {done ? (
        <Check aria-hidden className="size-5 shrink-0 text-ok" />
      ) : (
        <Circle aria-hidden className="size-5 shrink-0 text-dim" />
      )}
      <div className="min-w-0 flex-1">
        <p className="font-medium">
          {title}
          <span className="sr-only">{done ? ", done" : ", to do"}</span>
        </p>
        <p className="text-dim">{children}</p>
        {!done && action && <div className="mt-2">{action}</div>}
      </div>
    </li>
  );
}

/** A mark of this browser about the open project. */
function useMark(name: string): [boolean, () => void] {
  const place = `coffer.${name}.${session()?.project?.projectId ?? "none"}`;
  const [on, setOn] = useState(() => localStorage.getItem(place) === "yes");
  return [
    on,
    () => {
      localStorage.setItem(place, "yes");
      setOn(true);
    },
  ];
}

function TryDemo({ primary }: { primary: boolean }) {
  const agents = useAgents();
  const repositories = useRepositories();
  const navigate = useNavigate();
  const fresh = useFreshTasks();
  const start = useMutation({
    mutationFn: async () => {
      const { startDemo } = await import("./demo");
      return startDemo(agents.data?.items ?? [], repositories.data?.items ?? []);
    },
    onSuccess: async (task) => {
      await Promise.all([fresh(), agents.refetch(), repositories.refetch()]);
      await navigate({ to: "/tasks/$task", params: { task } });
    },
    onError: toastError,
  });
  return (
    <Button
      tone={primary ? "primary" : "plain"}
      busy={start.isPending}
      why={may("admin") ? undefined : "Only an admin's key can create the demo's agent."}
      onClick={() => start.mutate()}
      icon={<Play aria-hidden className="size-4" />}
    >
      Try the demo
    </Button>
  );
}

export function FirstSteps({ tasks, onNewTask }: { tasks: Task[]; onNewTask: () => void }) {
  const agents = useAgents();
  const repositories = useRepositories();
  const [open, setOpen] = useState<"agent" | "repository" | "test">();
  const [hidden, hide] = useMark("first-steps-hidden");
  const [tested, setTested] = useMark("agent-tested");
  if (agents.data === undefined || repositories.data === undefined || !may("write") || hidden) return null;
  // The demo shows the way; it is not a start of one's own.
  const own = agents.data.items.filter((agent) => agent.definition && !isDemoAgent(agent));
  const hasRepository = repositories.data.items.some((one) => !DEMO_REPOSITORY.test(one.name));
  const hasTasks = tasks.some((task) => !task.labels.includes(DEMO_LABEL));
  const hasAgent = own.length > 0;
  // A task that an agent has worked on says more than a test.
  const isTested = tested || tasks.some((task) => task.attempts > 0 && !task.labels.includes(DEMO_LABEL));
  if (hasRepository && hasAgent && hasTasks) return null;
  const first = !hasRepository ? "repository" : !hasAgent ? "agent" : "task";
  const isNew = !hasRepository && !hasAgent && tasks.length === 0;
  const tone = (step: string) => (step === first && !isNew ? "primary" : "plain");
  return (
    <section aria-label="First steps" className="shrink-0 rounded-lg border border-line bg-surface">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-2 border-b border-line px-4 py-2.5">
        <div className="min-w-60 flex-1">
          <h2 className="font-semibold">From here to the first pull request</h2>
          <p className="text-dim">
            See it first: a scripted agent fixes a small repository. It calls no model and needs no key.
          </p>
        </div>
        <TryDemo primary={isNew} />
        <Button
          tone="ghost"
          aria-label="Hide the first steps"
          title="Hide"
          onClick={hide}
          icon={<X aria-hidden className="size-4" />}
        />
      </div>
      <ol className="divide-y divide-line lg:grid lg:grid-cols-4 lg:divide-x lg:divide-y-0">
        <Step
          done={hasRepository}
          title="A repository"
          action={
            <Button tone={tone("repository")} onClick={() => setOpen("repository")}>
              Add repository
            </Button>
          }
        >
          Import a bundle, push with git, or connect GitHub.
        </Step>
        <Step
          done={hasAgent}
          title="An agent with its key"
          action={
            <Button
              tone={tone("agent")}
              why={may("admin") ? undefined : "Only an admin's key can create agents."}
              onClick={() => setOpen("agent")}
            >
              Add agent
            </Button>
          }
        >
          Claude Code, Codex, Gemini or a command of your own.
        </Step>
        <Step
          done={isTested && hasAgent}
          title="A test of the agent"
          action={
            own[0] !== undefined && (
              <Button disabled={!may("write")} onClick={() => setOpen("test")}>
                Test it
              </Button>
            )
          }
        >
          Whether it starts, signs in and answers.
        </Step>
        <Step
          done={hasTasks}
          title="A task"
          action={
            <Button tone={tone("task")} onClick={onNewTask}>
              New task
            </Button>
          }
        >
          Describe the work; the result is a pull request.
        </Step>
      </ol>
      {open === "repository" && <NewRepository onClose={() => setOpen(undefined)} />}
      {/* Here and not in its step, which is done, and without a button, as soon as the test passes. */}
      {open === "test" && own[0] !== undefined && (
        <TestDialog agent={own[0]} onClose={() => setOpen(undefined)} onTested={setTested} />
      )}
      {open === "agent" && <AgentDialog onClose={() => setOpen(undefined)} />}
    </section>
  );
}
