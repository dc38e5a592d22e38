// The form of a task: a new one, or one that is edited.
import { useState, type ReactNode } from "react";
import { useMutation } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { api, take, type Schemas } from "../api/client";
import { Button } from "../ui/Button";
import { curl, type Recipe } from "../ui/CopyAs";
import { toastError } from "../ui/feedback";
import { SelectField, TextArea, TextField } from "../ui/fields";
import { FormDialog } from "../ui/FormDialog";
import { writeTagged } from "../settings/tagged";
import { AgentField, RepositoryField, useOnlyChoices } from "./choices";
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
  onReview: Schemas["TaskOnReview"];
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
  onReview: "wait",
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
  /** As they were when the form was opened. */
  before: Values;
  onChange: (values: Values) => void;
  make: { mutate: () => void; error: unknown; isPending: boolean };
  recipe: Recipe;
  onClose: () => void;
  /** More ways to send it, next to the main one. */
  also?: ReactNode;
}

function TaskForm({ title, action, values, before, onChange, make, recipe, onClose, also }: Props) {
  const set = (name: keyof Values) => (event: { target: { value: string } }) =>
    onChange({ ...values, [name]: event.target.value });
  const dirty = JSON.stringify(values) !== JSON.stringify(before);
  return (
    <FormDialog {...{ title, action, recipe, onClose, also, dirty }} send={make} wide>
      <TextField label="Title" required autoFocus value={values.title} onChange={set("title")} />
      <TextArea
        label="Description"
        value={values.description}
        onChange={set("description")}
        className="min-h-32 font-sans"
        hint="The agent reads this."
      />
      <div className="grid gap-4 sm:grid-cols-2">
        <RepositoryField value={values.repository} onChange={(repository) => onChange({ ...values, repository })} />
        <TextField label="From branch" value={values.base} onChange={set("base")} placeholder="the default branch" />
        <AgentField value={values.agent} onChange={(agent) => onChange({ ...values, agent })} />
        <TextField label="Model" value={values.model} onChange={set("model")} placeholder="the agent's default" />
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
          hint="A command that must pass before the pull request is opened."
        />
        <TextField
          label="Budget"
          type="number"
          min="0"
          step="any"
          value={values.budget}
          onChange={set("budget")}
          hint="What all attempts may cost together."
        />
        <SelectField label="After a review" value={values.onReview} onChange={set("onReview")}>
          <option value="wait">Wait for me</option>
          <option value="start">Start the next attempt</option>
        </SelectField>
      </div>
    </FormDialog>
  );
}

export function NewTask({ onClose }: { onClose: () => void }) {
  const navigate = useNavigate();
  const fresh = useFreshTasks();
  const only = useOnlyChoices();
  const [typed, setValues] = useState<Partial<Values>>({});
  const before = { ...BLANK, agent: only.agent ?? "", repository: only.repository ?? "" };
  const values = { ...before, ...typed };
  const { title, description, priority, repository, base, agent, model, check, labels, budget, onReview } = values;
  const body = (): Schemas["NewTask"] => ({
    title,
    description,
    priority,
    state: "todo",
    on_review: onReview,
    labels: toLabels(labels),
    ...(repository === "" ? {} : { repository }),
    ...(base === "" ? {} : { base_branch: base }),
    ...(agent === "" ? {} : { agent_id: agent }),
    ...(model === "" ? {} : { model }),
    ...(check === "" ? {} : { check_command: check }),
    ...(budget === "" ? {} : { budget: Number(budget) }),
  });
  const create = async (start: boolean) => {
    const task = await take(api.POST("/api/v1/tasks", { body: body() }));
    const params = { path: { task: task.id } };
    // The task exists by now. If it cannot start, its page says why and has the button.
    if (start) await take(api.POST("/api/v1/tasks/{task}/start", { params, body: {} })).catch(toastError);
    return task;
  };
  const make = useMutation({
    mutationFn: (start: boolean) => create(start),
    onSuccess: async (task) => {
      await fresh();
      await navigate({ to: "/tasks/$task", params: { task: task.id } });
    },
  });
  const ready = title.trim() !== "" && repository !== "" && agent !== "";
  return (
    <TaskForm
      title="New task"
      action={ready ? "Create and start" : "Create"}
      also={
        ready && (
          <Button busy={make.isPending} onClick={() => make.mutate(false)}>
            Create
          </Button>
        )
      }
      values={values}
      before={before}
      onChange={setValues}
      make={{ ...make, mutate: () => make.mutate(ready) }}
      recipe={{ curl: curl("POST", "/api/v1/tasks", body()) }}
      onClose={onClose}
    />
  );
}

export function EditTask({ task, onClose }: { task: Task; onClose: () => void }) {
  const fresh = useFreshTasks();
  const [version] = useState(task.version);
  const [before] = useState<Values>(() => ({
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
    onReview: task.on_review,
  }));
  const [values, setValues] = useState(before);
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
    on_review: values.onReview,
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
      title="Edit the task"
      action="Save"
      values={values}
      before={before}
      onChange={setValues}
      make={save}
      recipe={{ curl: curl("PATCH", `/api/v1/tasks/${task.id}`, body) }}
      onClose={onClose}
    />
  );
}
