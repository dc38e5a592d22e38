import { useState, type FormEvent } from "react";
import { useMutation } from "@tanstack/react-query";
import { api, take } from "../api/client";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Dialog } from "../ui/Dialog";
import { ErrorBox } from "../ui/feedback";
import { TextField } from "../ui/fields";
import { AgentField, RepositoryField } from "./choices";
import { useFreshTasks, type Task } from "./tasks";

interface Props {
  task: Task;
  onClose: () => void;
  /** Moves the card to In progress without starting it, if it was dropped there. */
  onMoveOnly?: () => void;
}

export function StartDialog({ task, onClose, onMoveOnly }: Props) {
  const fresh = useFreshTasks();
  const [agent, setAgent] = useState(task.agent_id ?? "");
  const [model, setModel] = useState(task.model ?? "");
  const [repository, setRepository] = useState(task.repository ?? "");
  const body = { ...(agent === "" ? {} : { agent_id: agent }), ...(model === "" ? {} : { model }) };
  const start = useMutation({
    mutationFn: async () => {
      const params = { path: { task: task.id } };
      if (repository !== (task.repository ?? ""))
        await take(api.PATCH("/api/v1/tasks/{task}", { params, body: { repository } }));
      return take(api.POST("/api/v1/tasks/{task}/start", { params, body }));
    },
    onSuccess: async () => {
      await fresh();
      onClose();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    start.mutate();
  };
  const again = task.attempts > 0;
  return (
    <Dialog
      open
      onClose={onClose}
      title={onMoveOnly !== undefined ? "Start this task?" : again ? "Retry" : "Start"}
      description={
        onMoveOnly === undefined
          ? undefined
          : "In progress is for tasks that an agent works on. Start one now, or only move the card."
      }
    >
      <form onSubmit={submit} className="space-y-4">
        <AgentField required value={agent} onChange={setAgent} />
        {!task.repository && <RepositoryField required value={repository} onChange={setRepository} />}
        <TextField
          label="Model"
          value={model}
          onChange={(event) => setModel(event.target.value)}
          placeholder="the agent's default"
        />
        {start.error !== null && <ErrorBox error={start.error} />}
        <div className="flex flex-wrap justify-end gap-2">
          <CopyAs recipe={{ curl: curl("POST", `/api/v1/tasks/${task.id}/start`, body) }} />
          <Button onClick={onClose}>Cancel</Button>
          {onMoveOnly !== undefined && (
            <Button
              onClick={() => {
                onMoveOnly();
                onClose();
              }}
            >
              Only move it
            </Button>
          )}
          <Button type="submit" tone="primary" busy={start.isPending}>
            Start
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
