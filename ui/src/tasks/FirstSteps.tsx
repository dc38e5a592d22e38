// What a new project needs before an agent can work in it. It goes away with the first task that has everything.
import { useState, type ReactNode } from "react";
import { Check, Circle } from "lucide-react";
import { useAgents } from "../api/agents";
import { may } from "../api/session";
import { NewRepository, useRepositories } from "../repositories/Repositories";
import { AgentDialog } from "../settings/AgentForm";
import { Button } from "../ui/Button";

function Step({
  done,
  title,
  children,
  action,
}: {
  done: boolean;
  title: string;
  children: ReactNode;
  action: ReactNode;
}) {
  return (
    <li className="flex items-center gap-3 px-4 py-3">
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
      </div>
      {!done && action}
    </li>
  );
}

export function FirstSteps({ hasTasks, onNewTask }: { hasTasks: boolean; onNewTask: () => void }) {
  const agents = useAgents();
  const repositories = useRepositories();
  const [open, setOpen] = useState<"agent" | "repository">();
  if (agents.data === undefined || repositories.data === undefined || !may("write")) return null;
  const runnable = agents.data.items.filter((agent) => agent.definition);
  const hasRepository = repositories.data.items.length > 0;
  const hasAgent = runnable.length > 0;
  if (hasRepository && hasAgent && hasTasks) return null;
  const first = !hasRepository ? "repository" : !hasAgent ? "agent" : "task";
  const tone = (step: string) => (step === first ? "primary" : "plain");
  return (
    <section aria-label="First steps" className="shrink-0 rounded-lg border border-line bg-surface">
      <h2 className="border-b border-line px-4 py-2.5 font-semibold">From here to the first pull request</h2>
      <ol className="divide-y divide-line lg:grid lg:grid-cols-3 lg:divide-x lg:divide-y-0">
        <Step
          done={hasRepository}
          title="A repository"
          action={
            <Button tone={tone("repository")} onClick={() => setOpen("repository")}>
              Add repository
            </Button>
          }
        >
          Agents clone it, push branches and open pull requests.
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
          done={hasTasks}
          title="A task"
          action={
            <Button tone={tone("task")} onClick={onNewTask}>
              New task
            </Button>
          }
        >
          Describe the work and press Start; the result is a pull request.
        </Step>
      </ol>
      {open === "repository" && <NewRepository onClose={() => setOpen(undefined)} />}
      {open === "agent" && <AgentDialog onClose={() => setOpen(undefined)} />}
    </section>
  );
}
