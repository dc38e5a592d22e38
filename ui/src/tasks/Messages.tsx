// What people say to the agent of a task.
import type { FormEvent } from "react";
import { useMutation, useQuery } from "@tanstack/react-query";
import { Clock, Send } from "lucide-react";
import { api, take } from "../api/client";
import { useNameOf } from "../api/people";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { useDraft } from "../ui/draft";
import { Empty, ErrorBox, Loaded } from "../ui/feedback";
import { TextArea } from "../ui/fields";
import { plainText } from "../ui/format";
import { Card } from "../ui/layout";
import { Markdown } from "../ui/Markdown";
import { Ago } from "../ui/time";
import { useFreshTasks, type Task } from "./tasks";

/** Which line a message is about, if it is about one. */
function place(about: unknown): string | undefined {
  if (typeof about !== "object" || about === null) return undefined;
  const { file, line } = about as { file?: unknown; line?: unknown };
  if (typeof file !== "string") return undefined;
  return plainText(typeof line === "number" ? `${file}:${line}` : file);
}

export function useMessages(task: string) {
  return useQuery({
    queryKey: ["tasks", "messages", task],
    queryFn: () =>
      take(api.GET("/api/v1/tasks/{task}/messages", { params: { path: { task }, query: { limit: 200 } } })),
  });
}

/** Messages that no agent has read yet. */
export function Waiting({ task }: { task: Task }) {
  const unread = (useMessages(task.id).data?.items ?? []).filter((message) => !message.run_id);
  if (unread.length === 0) return null;
  return (
    <ul aria-label="Comments that the agent has not read" className="max-h-40 overflow-y-auto border-t border-line">
      {unread.map((message) => (
        <li key={message.number} className="flex gap-2 px-4 py-1.5 text-dim">
          <Clock aria-hidden className="mt-0.5 size-4 shrink-0" />
          <p className="min-w-0 flex-1 truncate">
            {place(message.about) !== undefined && (
              <span className="mr-2 font-mono text-xs">{place(message.about)}</span>
            )}
            {plainText(message.body)}
          </p>
          <span className="shrink-0 text-xs">not read yet</span>
        </li>
      ))}
    </ul>
  );
}

export function Composer({ task, working }: { task: Task; working: boolean }) {
  const fresh = useFreshTasks();
  const [body, setBody] = useDraft(`comment on ${task.id}`);
  const say = useMutation({
    mutationFn: (start: boolean) =>
      take(api.POST("/api/v1/tasks/{task}/messages", { params: { path: { task: task.id } }, body: { body, start } })),
    onSuccess: () => {
      setBody("");
      void fresh();
    },
  });
  if (!may("write")) return null;
  const starts = !working && task.attempts > 0;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (body.trim() !== "") say.mutate(starts);
  };
  return (
    <form onSubmit={submit} className="space-y-2 border-t border-line p-3">
      <TextArea
        label="Comment for the agent"
        hideLabel
        required
        value={body}
        onChange={(event) => setBody(event.target.value)}
        className="min-h-14 font-sans"
        placeholder={
          working
            ? "Comment for the agent: it reads it after its current turn"
            : starts
              ? "Comment for the agent, and start another attempt"
              : "Comment for the agent: it reads it when the task starts"
        }
      />
      {say.error !== null && <ErrorBox error={say.error} />}
      <div className="flex flex-wrap items-center justify-end gap-2">
        <CopyAs recipe={{ curl: curl("POST", `/api/v1/tasks/${task.id}/messages`, { body: body || "why?" }) }} />
        {starts && (
          <Button busy={say.isPending} disabled={body.trim() === ""} onClick={() => say.mutate(false)}>
            Comment only
          </Button>
        )}
        <Button
          type="submit"
          tone="primary"
          busy={say.isPending}
          disabled={body.trim() === ""}
          icon={<Send aria-hidden className="size-4" />}
        >
          {starts ? "Send and start again" : "Send"}
        </Button>
      </div>
    </form>
  );
}

/** All comments, read or not, with the form: for the drawer. */
export function Messages({ task, working }: { task: Task; working: boolean }) {
  const query = useMessages(task.id);
  const nameOf = useNameOf();
  return (
    <Card title="Comments">
      <Loaded query={query}>
        {({ items }) =>
          items.length === 0 ? (
            <Empty title="No comments yet" />
          ) : (
            <ol className="divide-y divide-line">
              {items.map((message) => (
                <li key={message.number} className="px-4 py-3">
                  <p className="flex gap-2 text-dim">
                    <span className="font-medium text-ink">{plainText(nameOf(message.author))}</span>
                    <Ago at={message.created_at} />
                    {!message.run_id && <span className="text-xs">not read yet</span>}
                  </p>
                  {place(message.about) !== undefined && (
                    <p className="mt-1 font-mono text-xs break-all text-dim">{place(message.about)}</p>
                  )}
                  <Markdown text={message.body} className="mt-1" />
                </li>
              ))}
            </ol>
          )
        }
      </Loaded>
      <Composer task={task} working={working} />
    </Card>
  );
}
