// The work on a task: what is wanted, the attempts with their steps, what they changed, and what was said.
import { Link, useParams } from "@tanstack/react-router";
import { Empty, ErrorBox, Loading } from "../ui/feedback";
import { plainText } from "../ui/format";
import { Card, Page } from "../ui/layout";
import { Artifacts } from "../work/Artifacts";
import { AttemptCard } from "./AttemptCard";
import { Changes } from "./Changes";
import { Messages } from "./Messages";
import { History, NeedsAttention, useTaskWork, Wanted } from "./TaskParts";

export function TaskPage() {
  const { task: id } = useParams({ from: "/shell/tasks/$task" });
  const { task, error, attempts, none, working, actions, dialogs } = useTaskWork(id);
  if (task === undefined) return error === null ? <Loading /> : <ErrorBox error={error} className="m-5" />;
  return (
    <Page
      name={plainText(task.title)}
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
      actions={actions}
    >
      <NeedsAttention task={task} />
      <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,1fr)_360px]">
        <div className="min-w-0 space-y-4">
          {!working && <Changes task={task} />}
          {attempts.map((attempt, at) => (
            <AttemptCard key={attempt.run_id} attempt={attempt} task={task} open={at === 0} />
          ))}
          {none && (
            <Card title="Attempts">
              <Empty title="Nobody has tried yet">Start it with an agent, or let several compete for it.</Empty>
            </Card>
          )}
          {working && <Changes task={task} />}
        </div>
        <div className="min-w-0 space-y-4">
          <Wanted task={task} />
          <Artifacts of={{ task_id: id }} />
          <Messages task={task} />
          <History id={id} />
        </div>
      </div>
      {dialogs}
    </Page>
  );
}
