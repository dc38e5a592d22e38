// What people and the agent said to each other about a task.
import { useState, type FormEvent } from "react";
import { useMutation, useQuery } from "@tanstack/react-query";
import { api, take } from "../api/client";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Empty, ErrorBox, Loaded } from "../ui/feedback";
import { CheckField, TextArea } from "../ui/fields";
import { paragraphs, plainText } from "../ui/format";
import { Card } from "../ui/layout";
import { Ago } from "../ui/time";
import { useFreshTasks, type Task } from "./tasks";

/** Which line a message is about, where it is about one. */
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

export function Messages({ task }: { task: Task }) {
  const fresh = useFreshTasks();
  const [body, setBody] = useState("");
  const [start, setStart] = useState(false);
  const query = useMessages(task.id);
  const say = useMutation({
    mutationFn: () =>
      take(api.POST("/api/v1/tasks/{task}/messages", { params: { path: { task: task.id } }, body: { body, start } })),
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
    <Card
      title="Said to the agent"
      actions={
        <CopyAs recipe={{ curl: curl("POST", `/api/v1/tasks/${task.id}/messages`, { body: body || "why?" }) }} />
      }
    >
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
                  {place(message.about) !== undefined && (
                    <p className="mt-1 font-mono text-xs break-all text-dim">{place(message.about)}</p>
                  )}
                  <p className="mt-1 whitespace-pre-wrap">{paragraphs(message.body)}</p>
                </li>
              ))}
            </ol>
          )
        }
      </Loaded>
      {may("write") && (
        <form onSubmit={submit} className="space-y-3 border-t border-line p-4">
          <TextArea
            label="Say something"
            required
            value={body}
            onChange={(event) => setBody(event.target.value)}
            className="font-sans"
            hint="While it works this is its next turn; later it is the next attempt's."
          />
          <CheckField
            label="And start another attempt"
            checked={start}
            onChange={(event) => setStart(event.target.checked)}
          />
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
