// What is to be done, by whom, from where: a new task, or one that is changed.
import { useState, type FormEvent } from "react";
import { useMutation } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useAgents } from "../api/agents";
import { api, take, type Schemas } from "../api/client";
import { useRepositories } from "../repositories/Repositories";
import { Button } from "../ui/Button";
import { CopyAs, curl, type Recipe } from "../ui/CopyAs";
import { Dialog } from "../ui/Dialog";
import { ErrorBox } from "../ui/feedback";
import { SelectField, TextArea, TextField } from "../ui/fields";
import { plainText } from "../ui/format";
import { writeTagged } from "../settings/tagged";
import { PRIORITIES, useFreshTasks, type Priority, type Task } from "./tasks";

interface Values {
  title: string;
  description: string;
  repository: string;
  base: string;
  agent: string;
  model: string;
  check: string;
  labels: string;
  budget: string;
  priority: Priority;
}

const BLANK: Values = {
  title: "",
  description: "",
  repository: "",
  base: "",
  agent: "",
  model: "",
  check: "",
  labels: "",
  budget: "",
  priority: "medium",
};

const toLabels = (text: string) =>
  text
    .split(",")
    .map((label) => label.trim())
    .filter(Boolean);

interface Props {
  title: string;
  action: string;
  values: Values;
  onChange: (values: Values) => void;
  make: { mutate: () => void; error: unknown; isPending: boolean };
  recipe: Recipe;
  onClose: () => void;
}

function TaskForm({ title, action, values, onChange, make, recipe, onClose }: Props) {
  const agents = useAgents();
  const repositories = useRepositories();
  const set = (name: keyof Values) => (event: { target: { value: string } }) =>
    onChange({ ...values, [name]: event.target.value });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate();
  };
  const known = repositories.data?.items.some((one) => one.name === values.repository) === true;
  return (
    <Dialog open onClose={onClose} title={title} wide>
      <form onSubmit={submit} className="space-y-4">
        <TextField label="Title" required autoFocus value={values.title} onChange={set("title")} />
        <TextArea
          label="What is to be done"
          value={values.description}
          onChange={set("description")}
          className="min-h-32 font-sans"
          hint="The agent reads this."
        />
        <div className="grid gap-4 sm:grid-cols-2">
          <SelectField label="Repository" value={values.repository} onChange={set("repository")}>
            <option value="">None yet</option>
            {!known && values.repository !== "" && (
              <option value={values.repository}>{plainText(values.repository)}</option>
            )}
            {repositories.data?.items.map((one) => (
              <option key={one.id} value={one.name}>
                {plainText(one.name)}
              </option>
            ))}
          </SelectField>
          <TextField label="From branch" value={values.base} onChange={set("base")} placeholder="the default branch" />
          <SelectField label="Agent" value={values.agent} onChange={set("agent")}>
            <option value="">Nobody yet</option>
            {agents.data?.items.map((one) => (
              <option key={one.id} value={one.id}>
                {plainText(one.name)}
              </option>
            ))}
          </SelectField>
          <TextField label="Model" value={values.model} onChange={set("model")} placeholder="the agent's own" />
          <SelectField label="Priority" value={values.priority} onChange={set("priority")}>
            {PRIORITIES.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </SelectField>
          <TextField label="Labels" value={values.labels} onChange={set("labels")} placeholder="bug, parser" />
          <TextField
            label="Check"
            className="font-mono"
            value={values.check}
            onChange={set("check")}
            placeholder="make test"
            hint="Must succeed before the pull request."
          />
          <TextField
            label="Budget"
            type="number"
            min="0"
            step="any"
            value={values.budget}
            onChange={set("budget")}
            hint="What one attempt may cost."
          />
        </div>
        {make.error !== null && <ErrorBox error={make.error} />}
        <div className="flex justify-end gap-2">
          <CopyAs recipe={recipe} />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={make.isPending}>
            {action}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

export function NewTask({ onClose }: { onClose: () => void }) {
  const navigate = useNavigate();
  const fresh = useFreshTasks();
  const [values, setValues] = useState(BLANK);
  const { title, description, priority, repository, base, agent, model, check, labels, budget } = values;
  const body = (): Schemas["NewTask"] => ({
    title,
    description,
    priority,
    state: "todo",
    labels: toLabels(labels),
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
  return (
    <TaskForm
      title="New task"
      action="Make it"
      values={values}
      onChange={setValues}
      make={make}
      recipe={{ curl: curl("POST", "/api/v1/tasks", body()) }}
      onClose={onClose}
    />
  );
}

export function EditTask({ task, onClose }: { task: Task; onClose: () => void }) {
  const fresh = useFreshTasks();
  const [version] = useState(task.version);
  const [values, setValues] = useState<Values>(() => ({
    title: task.title,
    description: task.description,
    repository: task.repository ?? "",
    base: task.base_branch ?? "",
    agent: task.agent_id ?? "",
    model: task.model ?? "",
    check: task.check_command ?? "",
    labels: task.labels.join(", "),
    budget: task.budget === null || task.budget === undefined ? "" : String(task.budget),
    priority: task.priority,
  }));
  const all = {
    title: values.title,
    description: values.description,
    priority: values.priority,
    labels: toLabels(values.labels),
    // What is empty is taken away.
    repository: values.repository || null,
    base_branch: values.base || null,
    agent_id: values.agent || null,
    model: values.model || null,
    check_command: values.check || null,
    budget: values.budget === "" ? null : Number(values.budget),
  };
  // Only what was changed: some of it is refused while an attempt is under way.
  const body = Object.fromEntries(
    Object.entries(all).filter(
      ([name, value]) => JSON.stringify(value) !== JSON.stringify(task[name as keyof Task] ?? null),
    ),
  );
  const save = useMutation({
    // What somebody else has changed meanwhile is not written over.
    mutationFn: () => writeTagged<Task>("PATCH", `/api/v1/tasks/${task.id}`, body, `"${version}"`),
    onSuccess: async () => {
      await fresh();
      onClose();
    },
  });
  return (
    <TaskForm
      title="Change the task"
      action="Save"
      values={values}
      onChange={setValues}
      make={save}
      recipe={{ curl: curl("PATCH", `/api/v1/tasks/${task.id}`, body) }}
      onClose={onClose}
    />
  );
}
