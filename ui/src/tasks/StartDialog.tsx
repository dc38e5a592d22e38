import { useState, type FormEvent } from "react";
import { useMutation } from "@tanstack/react-query";
import { useAgents } from "../api/agents";
import { api, take } from "../api/client";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Dialog } from "../ui/Dialog";
import { ErrorBox } from "../ui/feedback";
import { SelectField, TextField } from "../ui/fields";
import { plainText } from "../ui/format";
import { useFreshTasks, type Task } from "./tasks";

export function StartDialog({ task, onClose }: { task: Task; onClose: () => void }) {
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
        <TextField
          label="Model"
          value={model}
          onChange={(event) => setModel(event.target.value)}
          placeholder="the agent's own"
        />
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
