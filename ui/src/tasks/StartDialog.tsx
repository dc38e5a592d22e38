import { useState } from "react";
import { useMutation } from "@tanstack/react-query";
import { api, take } from "../api/client";
import { Button } from "../ui/Button";
import { curl } from "../ui/CopyAs";
import { TextField } from "../ui/fields";
import { FormDialog } from "../ui/FormDialog";
import { AgentField, RepositoryField, useOnlyChoices } from "./choices";
import { useFreshTasks, type Task } from "./tasks";

interface Props {
  task: Task;
  onClose: () => void;
  /** Moves the card to In progress without starting it, if it was dropped there. */
  onMoveOnly?: () => void;
}

export function StartDialog({ task, onClose, onMoveOnly }: Props) {
  const fresh = useFreshTasks();
  const only = useOnlyChoices();
  const [chosenAgent, setAgent] = useState(task.agent_id ?? undefined);
  const agent = chosenAgent ?? only.agent ?? "";
  const [model, setModel] = useState(task.model ?? "");
  const [chosenRepository, setRepository] = useState(task.repository ?? undefined);
  const repository = chosenRepository ?? only.repository ?? "";
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
  const again = task.attempts > 0;
  return (
    <FormDialog
      title={onMoveOnly !== undefined ? "Start this task?" : again ? "Retry" : "Start"}
      description={
        onMoveOnly === undefined
          ? undefined
          : "In progress is for tasks that an agent works on. Start one now, or only move the card."
      }
      action="Start"
      send={start}
      recipe={{ curl: curl("POST", `/api/v1/tasks/${task.id}/start`, body) }}
      also={
        onMoveOnly !== undefined && (
          <Button
            onClick={() => {
              onMoveOnly();
              onClose();
            }}
          >
            Only move it
          </Button>
        )
      }
      onClose={onClose}
    >
      <AgentField required value={agent} onChange={setAgent} />
      {!task.repository && <RepositoryField required value={repository} onChange={setRepository} />}
      <TextField
        label="Model"
        value={model}
        onChange={(event) => setModel(event.target.value)}
        placeholder="the agent's default"
      />
    </FormDialog>
  );
}
