import { useState, type FormEvent } from "react";
import { useMutation } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useAgents } from "../api/agents";
import { api, take, type Schemas } from "../api/client";
import { useRepositories } from "../repositories/Repositories";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Dialog } from "../ui/Dialog";
import { ErrorBox } from "../ui/feedback";
import { SelectField, TextArea, TextField } from "../ui/fields";
import { plainText } from "../ui/format";
import { PRIORITIES, useFreshTasks, type Priority } from "./tasks";

export function NewTask({ onClose }: { onClose: () => void }) {
  const navigate = useNavigate();
  const fresh = useFreshTasks();
  const agents = useAgents();
  const repositories = useRepositories();
  const [title, setTitle] = useState("");
  const [description, setDescription] = useState("");
  const [repository, setRepository] = useState("");
  const [base, setBase] = useState("");
  const [agent, setAgent] = useState("");
  const [model, setModel] = useState("");
  const [check, setCheck] = useState("");
  const [labels, setLabels] = useState("");
  const [budget, setBudget] = useState("");
  const [priority, setPriority] = useState<Priority>("medium");
  const body = (): Schemas["NewTask"] => ({
    title,
    description,
    priority,
    state: "todo",
    labels: labels.split(",").map((label) => label.trim()).filter(Boolean),
    ...(repository === "" ? {} : { repository }),
    ...(base === "" ? {} : { base_branch: base }),
    ...(agent === "" ? {} : { agent_id: agent }),
    ...(model === "" ? {} : { model }),
    ...(check === "" ? {} : { check_command: check }),
    ...(budget === "" ? {} : { budget: Number(budget) }),
  });
  const make = useMutation({
    mutationFn: () => take(api.POST("/api/v1/tasks", { body: body() })),
    onSuccess: async (task) => {
      await fresh();
      await navigate({ to: "/tasks/$task", params: { task: task.id } });
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate();
  };
  return (
    <Dialog open onClose={onClose} title="New task" wide>
      <form onSubmit={submit} className="space-y-4">
        <TextField label="Title" required autoFocus value={title} onChange={(event) => setTitle(event.target.value)} />
        <TextArea label="What is to be done" value={description} onChange={(event) => setDescription(event.target.value)} className="min-h-32 font-sans" hint="The agent reads this." />
        <div className="grid gap-4 sm:grid-cols-2">
          <SelectField label="Repository" value={repository} onChange={(event) => setRepository(event.target.value)}>
            <option value="">None yet</option>
            {repositories.data?.items.map((one) => (
              <option key={one.id} value={one.name}>
                {plainText(one.name)}
              </option>
            ))}
          </SelectField>
          <TextField label="From branch" value={base} onChange={(event) => setBase(event.target.value)} placeholder="the default branch" />
          <SelectField label="Agent" value={agent} onChange={(event) => setAgent(event.target.value)}>
            <option value="">Nobody yet</option>
            {agents.data?.items.map((one) => (
              <option key={one.id} value={one.id}>
                {plainText(one.name)}
              </option>
            ))}
          </SelectField>
          <TextField label="Model" value={model} onChange={(event) => setModel(event.target.value)} placeholder="the agent's own" />
          <SelectField label="Priority" value={priority} onChange={(event) => setPriority(event.target.value as Priority)}>
            {PRIORITIES.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </SelectField>
          <TextField label="Labels" value={labels} onChange={(event) => setLabels(event.target.value)} placeholder="bug, parser" />
          <TextField label="Check" className="font-mono" value={check} onChange={(event) => setCheck(event.target.value)} placeholder="make test" hint="Must succeed before the pull request." />
          <TextField label="Budget" type="number" min="0" step="any" value={budget} onChange={(event) => setBudget(event.target.value)} />
        </div>
        {make.error !== null && <ErrorBox error={make.error} />}
        <div className="flex justify-end gap-2">
          <CopyAs recipe={{ curl: curl("POST", "/api/v1/tasks", body()) }} />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={make.isPending}>
            Make it
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
