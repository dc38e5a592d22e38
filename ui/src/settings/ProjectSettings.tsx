import { useState, type FormEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { toast } from "sonner";
import { api, take, type Schemas } from "../api/client";
import { may, renameProject, useSession } from "../api/session";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { ErrorBox, Loaded } from "../ui/feedback";
import { SelectField, TextField } from "../ui/fields";
import { mebibytes } from "../ui/format";
import { Card, Facts } from "../ui/layout";
import { Quotas } from "./Quotas";
import { SettingsFrame } from "./SettingsFrame";
import { readTagged, writeTagged, type Tagged } from "./tagged";

type Settings = Schemas["Settings"];
type Shape = Schemas["SettingsShape"];
type Project = Schemas["Project"];

function NameForm({ project }: { project: Tagged<Project> }) {
  const queries = useQueryClient();
  const [draft, setDraft] = useState<string>();
  const name = draft ?? project.value.name;
  const save = useMutation({
    mutationFn: () => writeTagged<Project>("PATCH", "/api/v1/project", { name }, project.tag),
    onSuccess: (next) => {
      queries.setQueryData(["project"], next);
      setDraft(undefined);
      renameProject(next.value.name);
      toast.success("Renamed");
    },
    onError: () => void queries.invalidateQueries({ queryKey: ["project"] }),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    save.mutate();
  };
  return (
    <form onSubmit={submit} className="space-y-3 p-4">
      <div className="flex items-end gap-2">
        <div className="flex-1">
          <TextField
            label="Name"
            required
            value={name}
            onChange={(event) => setDraft(event.target.value)}
            disabled={!may("admin")}
          />
        </div>
        <Button type="submit" busy={save.isPending} disabled={!may("admin") || name === project.value.name}>
          Rename
        </Button>
      </div>
      {save.error !== null && <ErrorBox error={save.error} />}
    </form>
  );
}

const TIMES: ["timeout_s" | "idle_s" | "max_lifetime_s", string][] = [
  ["timeout_s", "Time limit of a sandbox (minutes)"],
  ["idle_s", "Idle limit (minutes)"],
  ["max_lifetime_s", "Longest lifetime (minutes)"],
];
const KEPT: [keyof NonNullable<Shape["retention"]>, string][] = [
  ["logs_days", "Logs (days)"],
  ["archive_logs_days", "Raw logs (days)"],
  ["events_days", "Events (days)"],
  ["audit_days", "Audit log (days)"],
  ["records_days", "Records of ended sandboxes (days)"],
];

/** As minutes, to the hundredth. */
const minutes = (seconds: number | null | undefined) =>
  seconds === null || seconds === undefined ? "" : String(Math.round((seconds / 60) * 100) / 100);

function SettingsForm({ settings }: { settings: Tagged<Settings> }) {
  const queries = useQueryClient();
  const { in_force: force, ...own } = settings.value;
  const text = (value: number | null | undefined) => (value === null || value === undefined ? "" : String(value));
  // Only what was written here: the rest follows what others change, and whoever was late keeps their text.
  const [drafts, setDrafts] = useState<Record<string, string>>({});
  const shown = (name: string, value: string) => drafts[name] ?? value;
  const write = (name: string, value: string) => setDrafts((all) => ({ ...all, [name]: value }));
  const times = Object.fromEntries(TIMES.map(([name]) => [name, shown(name, minutes(own[name]))]));
  // Seconds that were not written here stay to the second.
  const seconds = Object.fromEntries(
    TIMES.flatMap(([name]) => {
      const draft = drafts[name];
      const value = draft === undefined ? own[name] : draft === "" ? undefined : Math.round(Number(draft) * 60);
      return value === undefined || value === null ? [] : [[name, value]];
    }),
  );
  const kept = Object.fromEntries(KEPT.map(([name]) => [name, shown(name, text(own.retention?.[name]))]));
  const atEnd = shown("on_timeout", own.on_timeout ?? "");
  const numbers = (all: Record<string, string>) =>
    Object.fromEntries(
      Object.entries(all)
        .filter(([, value]) => value !== "")
        .map(([name, value]) => [name, Number(value)]),
    );
  // It is written as a whole: what this form does not show stays as it is.
  const { timeout_s: _t, idle_s: _i, max_lifetime_s: _m, on_timeout: _o, retention: _r, ...rest } = own;
  const wanted = () => ({
    ...rest,
    ...seconds,
    retention: numbers(kept),
    ...(atEnd === "" ? {} : { on_timeout: atEnd }),
  });
  const save = useMutation({
    mutationFn: () => writeTagged<Settings>("PUT", "/api/v1/project/settings", wanted(), settings.tag),
    onSuccess: (next) => {
      queries.setQueryData(["settings"], next);
      setDrafts({});
      toast.success("Saved; applies to new sandboxes");
    },
    onError: () => void queries.invalidateQueries({ queryKey: ["settings"] }),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    save.mutate();
  };
  const disabled = !may("admin");
  return (
    <form onSubmit={submit} className="space-y-5 p-4">
      <div className="grid gap-4 sm:grid-cols-2 lg:grid-cols-4">
        {TIMES.map(([name, label]) => (
          <TextField
            key={name}
            label={label}
            type="number"
            min="0"
            step="any"
            disabled={disabled}
            value={times[name] ?? ""}
            onChange={(event) => write(name, event.target.value)}
            placeholder="the server's default"
            hint={`In force: ${minutes(force[name]) || "no limit"}`}
          />
        ))}
        <SelectField
          label="At the time limit"
          disabled={disabled}
          value={atEnd}
          onChange={(event) => write("on_timeout", event.target.value)}
          hint={`In force: ${force.on_timeout ?? "kill"}`}
        >
          <option value="">The server's default</option>
          <option value="kill">destroyed</option>
          <option value="pause">paused, with memory</option>
          <option value="pause_files_only">paused, files only</option>
        </SelectField>
      </div>
      <fieldset>
        <legend className="mb-2 font-medium">Retention</legend>
        <div className="grid gap-4 sm:grid-cols-2 lg:grid-cols-4">
          {KEPT.map(([name, label]) => (
            <TextField
              key={name}
              label={label}
              type="number"
              min="0"
              disabled={disabled}
              value={kept[name] ?? ""}
              onChange={(event) => write(name, event.target.value)}
              placeholder="the server's default"
              hint={`In force: ${force.retention?.[name] ?? "forever"}`}
            />
          ))}
        </div>
      </fieldset>
      {save.error !== null && <ErrorBox error={save.error} />}
      <div className="flex justify-end gap-2">
        <CopyAs recipe={{ curl: curl("PUT", "/api/v1/project/settings", wanted()) }} />
        <Button type="submit" tone="primary" busy={save.isPending} disabled={disabled}>
          Save
        </Button>
      </div>
    </form>
  );
}

export function ProjectSettings() {
  const operating = useSession()?.operating === true;
  const project = useQuery({ queryKey: ["project"], queryFn: () => readTagged<Project>("/api/v1/project") });
  const settings = useQuery({
    queryKey: ["settings"],
    queryFn: () => readTagged<Settings>("/api/v1/project/settings"),
  });
  const queue = useQuery({ queryKey: ["queue"], queryFn: () => take(api.GET("/api/v1/queue")) }).data;
  const quotas = useQuery({ queryKey: ["quotas"], queryFn: () => take(api.GET("/api/v1/quotas")) });
  return (
    <SettingsFrame admin={false}>
      <Card title="Project">
        <Loaded query={project}>{(one) => <NameForm project={one} />}</Loaded>
      </Card>
      <Card title="Lifetimes and retention">
        <Loaded query={settings}>{(one) => <SettingsForm settings={one} />}</Loaded>
      </Card>
      <Card title="Quotas">
        <Loaded query={quotas}>
          {({ limits, used }) => (
            <Facts
              facts={[
                ["Sandboxes", `${used.sandboxes} of ${limits.sandboxes ?? "no limit"}`],
                ["Processors", `${used.cpus} of ${limits.cpus ?? "no limit"}`],
                [
                  "Memory",
                  `${mebibytes(used.memory_mib)} of ${limits.memory_mib ? mebibytes(limits.memory_mib) : "no limit"}`,
                ],
                ["Disk", `${mebibytes(used.disk_mib)} of ${limits.disk_mib ? mebibytes(limits.disk_mib) : "no limit"}`],
                ["Concurrent forks", limits.forks ?? "no limit"],
                [
                  "Concurrent attempts",
                  queue === undefined
                    ? "–"
                    : `${queue.limits.per_project ?? "any number"}, of ${queue.limits.in_all} on this server`,
                ],
              ]}
            />
          )}
        </Loaded>
        {operating && project.data !== undefined ? (
          <div className="border-t border-line p-4">
            <Quotas project={project.data.value.id} />
          </div>
        ) : (
          <p className="border-t border-line px-4 py-3 text-dim">The operator sets these.</p>
        )}
      </Card>
    </SettingsFrame>
  );
}
