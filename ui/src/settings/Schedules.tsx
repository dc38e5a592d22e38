// Tasks that start by the clock.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { CalendarClock, Pause, Play } from "lucide-react";
import { toast } from "sonner";
import { api, take, type Schemas } from "../api/client";
import { may } from "../api/session";
import { AgentField, RepositoryField } from "../tasks/choices";
import { Badge, type Tone } from "../ui/Badge";
import { Button } from "../ui/Button";
import { curl } from "../ui/CopyAs";
import { toastError } from "../ui/feedback";
import { SelectField, TextArea, TextField } from "../ui/fields";
import { moment, plainText } from "../ui/format";
import { Cell } from "../ui/layout";
import { Ago } from "../ui/time";
import { List, NewForm, Removal } from "./Collection";
import { SettingsFrame } from "./SettingsFrame";

type Schedule = Schemas["Schedule"];
type NewSchedule = Schemas["NewSchedule"];

const TONES: Record<string, Tone> = { started: "ok", skipped: "dim", failed: "bad" };

const USUAL: [string, string][] = [
  ["0 2 * * *", "every night at 02:00"],
  ["0 8 * * mon-fri", "weekdays at 08:00"],
  ["0 8 * * mon", "Mondays at 08:00"],
  ["0 * * * *", "every hour"],
  ["", "another time"],
];

function Row({ schedule, onRemove }: { schedule: Schedule; onRemove: () => void }) {
  const queries = useQueryClient();
  const fresh = () => queries.invalidateQueries({ queryKey: ["schedules"] });
  const path = { schedule: schedule.id };
  const enable = useMutation({
    mutationFn: (enabled: boolean) =>
      take(api.PATCH("/api/v1/schedules/{schedule}", { params: { path }, body: { enabled } })),
    onError: toastError,
    onSettled: fresh,
  });
  const run = useMutation({
    mutationFn: () => take(api.POST("/api/v1/schedules/{schedule}/run", { params: { path } })),
    onSuccess: () => toast.success("Its task has started"),
    onError: toastError,
    onSettled: fresh,
  });
  const name = plainText(schedule.name);
  return (
    <tr>
      <Cell>
        <span className="font-medium">{name}</span>
        <span className="block max-w-64 truncate text-xs text-dim">{plainText(schedule.task.title)}</span>
      </Cell>
      <Cell className="whitespace-nowrap">
        <code className="font-mono text-xs">{plainText(schedule.cron)}</code>
        <span className="block text-xs text-dim">{plainText(schedule.time_zone)}</span>
      </Cell>
      <Cell className="whitespace-nowrap">
        {schedule.next_at ? (
          <time dateTime={schedule.next_at}>{moment(schedule.next_at)}</time>
        ) : (
          <Badge tone="warn">paused</Badge>
        )}
      </Cell>
      <Cell>
        {schedule.last_at && schedule.last_outcome ? (
          <span className="flex flex-wrap items-center gap-1.5" title={plainText(schedule.last_message ?? "")}>
            <Badge tone={TONES[schedule.last_outcome] ?? "dim"}>{schedule.last_outcome}</Badge>
            <Ago at={schedule.last_at} />
            {schedule.last_task_id && (
              <Link to="/tasks/$task" params={{ task: schedule.last_task_id }} className="text-accent hover:underline">
                Open its task
              </Link>
            )}
          </span>
        ) : (
          <span className="text-dim">not yet</span>
        )}
      </Cell>
      <Cell className="text-right whitespace-nowrap">
        <Button tone="ghost" disabled={!may("write")} busy={run.isPending} onClick={() => run.mutate()}>
          Run now
        </Button>
        <Button
          tone="ghost"
          aria-label={schedule.enabled ? `Pause ${name}` : `Resume ${name}`}
          title={schedule.enabled ? "Pause" : "Resume"}
          disabled={!may("write")}
          busy={enable.isPending}
          onClick={() => enable.mutate(!schedule.enabled)}
          icon={schedule.enabled ? <Pause aria-hidden className="size-4" /> : <Play aria-hidden className="size-4" />}
        />
        <Button tone="quiet-danger" disabled={!may("write")} onClick={onRemove}>
          Remove
        </Button>
      </Cell>
    </tr>
  );
}

export function Schedules() {
  const queries = useQueryClient();
  const query = useQuery({
    queryKey: ["schedules"],
    queryFn: () => take(api.GET("/api/v1/schedules", { params: { query: { limit: 200 } } })),
  });
  const [name, setName] = useState("");
  const [usual, setUsual] = useState(USUAL[0]?.[0] ?? "");
  const [cron, setCron] = useState(usual);
  const [zone, setZone] = useState(() => Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC");
  const [title, setTitle] = useState("");
  const [description, setDescription] = useState("");
  const [agent, setAgent] = useState("");
  const [repository, setRepository] = useState("");
  const [check, setCheck] = useState("");
  const [budget, setBudget] = useState("");
  const [overlap, setOverlap] = useState<NonNullable<NewSchedule["overlap"]>>("skip");
  const [removing, setRemoving] = useState<Schedule>();
  const fresh = () => queries.invalidateQueries({ queryKey: ["schedules"] });
  const body = (): NewSchedule => ({
    name: name.trim(),
    cron: cron.trim(),
    time_zone: zone.trim(),
    overlap,
    task: {
      title: title.trim(),
      description,
      agent_id: agent,
      repository: repository || undefined,
      check_command: check.trim() || undefined,
      budget: budget === "" ? undefined : Number(budget),
    },
  });
  const make = useMutation({
    mutationFn: () => take(api.POST("/api/v1/schedules", { body: body() })),
    onSuccess: () => {
      setName("");
      setTitle("");
      setDescription("");
      return fresh();
    },
  });
  return (
    <SettingsFrame admin={false}>
      <List
        title="Schedules"
        query={query}
        head={["Name", "When", "Next start", "Last start", ""]}
        empty={{
          icon: <CalendarClock aria-hidden className="size-6" />,
          title: "No schedules yet",
          text: "A schedule starts a task by the clock: updates every night, a report on Mondays.",
        }}
      >
        {(schedule) => <Row key={schedule.id} schedule={schedule} onRemove={() => setRemoving(schedule)} />}
      </List>
      <NewForm
        title="New schedule"
        recipe={{ curl: curl("POST", "/api/v1/schedules", body()) }}
        action="Create"
        make={make}
        allowed={may("write")}
      >
        <TextField label="Name" required value={name} onChange={(event) => setName(event.target.value)} />
        <TextField
          label="Title of its tasks"
          required
          hint="{{date}} is the day on which it starts"
          value={title}
          onChange={(event) => setTitle(event.target.value)}
        />
        <SelectField
          label="When"
          value={usual}
          onChange={(event) => {
            setUsual(event.target.value);
            if (event.target.value !== "") setCron(event.target.value);
          }}
        >
          {USUAL.map(([value, told]) => (
            <option key={value} value={value}>
              {told}
            </option>
          ))}
        </SelectField>
        <TextField
          label="Cron"
          required
          hint="minute, hour, day, month, weekday"
          className="font-mono"
          value={cron}
          onChange={(event) => {
            setUsual(USUAL.some(([value]) => value === event.target.value) ? event.target.value : "");
            setCron(event.target.value);
          }}
        />
        <TextField label="Time zone" required value={zone} onChange={(event) => setZone(event.target.value)} />
        <SelectField
          label="While its last task is open"
          value={overlap}
          onChange={(event) => setOverlap(event.target.value as typeof overlap)}
        >
          <option value="skip">start nothing</option>
          <option value="start">start another</option>
        </SelectField>
        <AgentField required value={agent} onChange={setAgent} />
        <RepositoryField required value={repository} onChange={setRepository} />
        <TextField
          label="Check"
          hint="A shell command that must pass"
          className="font-mono"
          value={check}
          onChange={(event) => setCheck(event.target.value)}
        />
        <TextField
          label="Budget of each task"
          type="number"
          min="0"
          step="any"
          value={budget}
          onChange={(event) => setBudget(event.target.value)}
        />
        <div className="sm:col-span-2">
          <TextArea
            label="Description"
            rows={4}
            value={description}
            onChange={(event) => setDescription(event.target.value)}
          />
        </div>
      </NewForm>
      <Removal
        thing={removing}
        name={(schedule) => plainText(schedule.name)}
        onClose={() => setRemoving(undefined)}
        remove={async ({ id }) => {
          await take(api.DELETE("/api/v1/schedules/{schedule}", { params: { path: { schedule: id } } }));
          await fresh();
        }}
      >
        It starts no more tasks. Tasks that it has started stay.
      </Removal>
    </SettingsFrame>
  );
}
