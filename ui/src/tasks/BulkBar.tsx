// What can be done with all selected tasks at once.
import { useState, type FormEvent } from "react";
import { Archive, Play, Tag, X } from "lucide-react";
import { useMutation } from "@tanstack/react-query";
import { useAgents } from "../api/agents";
import { api, take, type Schemas } from "../api/client";
import { Button } from "../ui/Button";
import { Confirm, Dialog } from "../ui/Dialog";
import { SelectField, TextField } from "../ui/fields";
import { plainText } from "../ui/format";
import { onEach, report, tasksOf } from "./bulk";
import { COLUMNS, PRIORITIES, useFreshTasks, type Priority, type Task, type TaskState } from "./tasks";
import { missingOf } from "./view";

type Change = Schemas["ChangedTask"];

/** A list of choices that acts on the one that is chosen and shows what it is for again. */
function Choice({
  label,
  disabled,
  onChoose,
  children,
}: {
  label: string;
  disabled: boolean;
  onChoose: (value: string) => void;
  children: React.ReactNode;
}) {
  return (
    <SelectField
      label={label}
      hideLabel
      value=""
      disabled={disabled}
      onChange={(event) => onChoose(event.target.value)}
      className="w-32"
    >
      <option value="">{label}…</option>
      {children}
    </SelectField>
  );
}

function LabelDialog({
  count,
  onClose,
  onAdd,
}: {
  count: number;
  onClose: () => void;
  onAdd: (label: string) => void;
}) {
  const [label, setLabel] = useState("");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onAdd(label.trim());
    onClose();
  };
  return (
    <Dialog open onClose={onClose} title={`Label ${tasksOf(count)}`} dirty={label !== ""}>
      <form onSubmit={submit} className="space-y-4">
        <TextField label="Label" required autoFocus value={label} onChange={(event) => setLabel(event.target.value)} />
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" disabled={label.trim() === ""}>
            Add label
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

export function BulkBar({ tasks, onClear }: { tasks: Task[]; onClear: () => void }) {
  const fresh = useFreshTasks();
  const agents = useAgents();
  const [open, setOpen] = useState<"label" | "start">();
  const work = useMutation({
    mutationFn: async (job: { done: string; act: (task: Task) => Promise<unknown>; undo?: (task: Task) => Change }) => {
      const { done, act, undo } = job;
      const all = tasks;
      const failed = await onEach(all, act);
      await fresh();
      const takeBack = () =>
        void onEach(all, (task) => change(task, undo?.(task) ?? {}))
          .then((left) => left.length > 0 && report("Restored", all.length, left))
          .then(fresh);
      report(done, all.length, failed, undo === undefined ? undefined : takeBack);
      return failed;
    },
    // What failed stays selected with the rest, so that it can be tried again.
    onSuccess: (failed) => failed.length === 0 && onClear(),
  });
  const change = (task: Task, body: Change) =>
    take(api.PATCH("/api/v1/tasks/{task}", { params: { path: { task: task.id } }, body }));
  const patch = (done: string, body: (task: Task) => Change, undo?: (task: Task) => Change) =>
    work.mutate({ done, act: (task) => change(task, body(task)), undo });
  const busy = work.isPending;
  const unready = tasks.filter((task) => missingOf(task) !== undefined).length;
  return (
    <div
      role="region"
      aria-label="Selected tasks"
      className="flex shrink-0 flex-wrap items-center gap-2 rounded-lg border border-accent/50 bg-accent-soft px-3 py-2"
    >
      <span className="mr-1 font-medium tabular-nums" aria-live="polite">
        {tasks.length} selected
      </span>
      <Choice
        label="Move to"
        disabled={busy}
        onChoose={(to) =>
          patch(
            "Moved",
            () => ({ state: to as TaskState }),
            (task) => ({ state: task.state }),
          )
        }
      >
        {COLUMNS.map(({ state, name }) => (
          <option key={state} value={state}>
            {name}
          </option>
        ))}
      </Choice>
      <Choice
        label="Assign"
        disabled={busy}
        onChoose={(agent) =>
          patch(
            "Assigned",
            () => ({ agent_id: agent === "none" ? null : agent }),
            (task) => ({ agent_id: task.agent_id ?? null }),
          )
        }
      >
        {agents.data?.items
          .filter((agent) => agent.definition)
          .map((agent) => (
            <option key={agent.id} value={agent.id}>
              {plainText(agent.name)}
            </option>
          ))}
        <option value="none">No agent</option>
      </Choice>
      <Choice
        label="Priority"
        disabled={busy}
        onChoose={(priority) =>
          patch(
            "Changed",
            () => ({ priority: priority as Priority }),
            (task) => ({ priority: task.priority }),
          )
        }
      >
        {PRIORITIES.map((one) => (
          <option key={one}>{one}</option>
        ))}
      </Choice>
      <Button disabled={busy} onClick={() => setOpen("label")} icon={<Tag aria-hidden className="size-4" />}>
        Label
      </Button>
      <Button disabled={busy} onClick={() => setOpen("start")} icon={<Play aria-hidden className="size-4" />}>
        Start
      </Button>
      <Button
        busy={busy}
        onClick={() =>
          patch(
            "Archived",
            () => ({ archived: true }),
            () => ({ archived: false }),
          )
        }
        icon={<Archive aria-hidden className="size-4" />}
      >
        Archive
      </Button>
      <Button
        tone="ghost"
        className="ml-auto"
        aria-label="Clear the selection"
        title="Clear the selection (Esc)"
        onClick={onClear}
        icon={<X aria-hidden className="size-4" />}
      />
      {open === "label" && (
        <LabelDialog
          count={tasks.length}
          onClose={() => setOpen(undefined)}
          onAdd={(label) =>
            patch(
              "Labelled",
              (task) => ({ labels: [...new Set([...task.labels, label])] }),
              (task) => ({ labels: task.labels }),
            )
          }
        />
      )}
      <Confirm
        open={open === "start"}
        onClose={() => setOpen(undefined)}
        title={`Start ${tasksOf(tasks.length)}?`}
        action="Start"
        onConfirm={() =>
          work.mutateAsync({
            done: "Started",
            act: (task) =>
              take(api.POST("/api/v1/tasks/{task}/start", { params: { path: { task: task.id } }, body: {} })),
          })
        }
      >
        Each agent works in a sandbox of its own; attempts beyond the project&rsquo;s limit wait in the queue.
        {unready > 0 && ` ${tasksOf(unready)} cannot start yet, without a repository or an agent.`}
      </Confirm>
    </div>
  );
}
