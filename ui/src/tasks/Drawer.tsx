// A task beside the board: what is wanted, its newest attempt, what was said; all of it is on its page.
import { Link } from "@tanstack/react-router";
import { Dialog as Radix } from "radix-ui";
import { Maximize2, X } from "lucide-react";
import { Button } from "../ui/Button";
import { ErrorBox, Loading } from "../ui/feedback";
import { plainText } from "../ui/format";
import { Artifacts } from "../work/Artifacts";
import { AttemptCard } from "./AttemptCard";
import { Messages } from "./Messages";
import { History, NeedsAttention, useTaskWork, Wanted } from "./TaskParts";

export function Drawer({ id, onClose }: { id: string; onClose: () => void }) {
  const { task, error, attempts, working, actions, dialogs } = useTaskWork(id);
  return (
    <Radix.Root open onOpenChange={(open) => !open && onClose()}>
      <Radix.Portal>
        <Radix.Overlay className="fixed inset-0 z-40 bg-black/40" />
        <Radix.Content
          aria-describedby={undefined}
          // A terminal needs Escape for itself: editors live by it.
          onEscapeKeyDown={(event) => document.activeElement?.closest("[data-terminal]") && event.preventDefault()}
          className="fixed inset-y-0 right-0 z-50 flex w-full max-w-[600px] flex-col border-l border-line bg-bg shadow-xl outline-none"
        >
          <div className="flex items-start gap-2 border-b border-line bg-surface px-4 py-3">
            <Radix.Title className="min-w-0 flex-1 pt-1 text-lg font-semibold break-words">
              {plainText(task?.title ?? "…")}
            </Radix.Title>
            <Link
              to="/tasks/$task"
              params={{ task: id }}
              aria-label="Open its page"
              title="Open its page"
              className="rounded-md p-2 text-dim hover:bg-raised hover:text-ink"
            >
              <Maximize2 aria-hidden className="size-4" />
            </Link>
            <Radix.Close asChild>
              <Button tone="ghost" aria-label="Close" icon={<X aria-hidden className="size-4" />} />
            </Radix.Close>
          </div>
          <div
            className="min-h-0 flex-1 space-y-4 overflow-y-auto p-4"
            tabIndex={0}
            role="region"
            aria-label="The task"
          >
            {error !== null && <ErrorBox error={error} />}
            {task === undefined && error === null && <Loading />}
            {task !== undefined && (
              <>
                <div className="flex flex-wrap items-center gap-2">{actions}</div>
                <NeedsAttention task={task} />
                <Wanted task={task} />
                {attempts.slice(0, 1).map((attempt) => (
                  <AttemptCard key={attempt.run_id} attempt={attempt} task={task} open />
                ))}
                <Artifacts of={{ task_id: id }} />
                <Messages task={task} working={working} />
                <History id={id} />
              </>
            )}
          </div>
          {dialogs}
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  );
}
