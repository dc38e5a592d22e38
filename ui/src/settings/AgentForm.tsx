// The form of an agent: which program it runs, with which key, in which template, within which limits.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { toast } from "sonner";
import { api, take, type Schemas } from "../api/client";
import { may } from "../api/session";
import { TemplatePicker } from "../templates/TemplatePicker";
import { curl } from "../ui/CopyAs";
import { SelectField, TextArea, TextField } from "../ui/fields";
import { FormDialog } from "../ui/FormDialog";
import { plainText } from "../ui/format";
import { BLANK_AGENT, toDefinition, toDraft, variableOf, type AgentDraft } from "./agentDraft";

type Agent = Schemas["Agent"];
type Preset = Schemas["PresetInfo"];

export function usePresets() {
  return useQuery({
    queryKey: ["presets"],
    queryFn: () => take(api.GET("/api/v1/agent-presets")),
    staleTime: Number.POSITIVE_INFINITY,
  });
}

export function useSecrets() {
  return useQuery({
    queryKey: ["secrets"],
    queryFn: () => take(api.GET("/api/v1/secrets")),
    enabled: may("admin"),
  });
}

/** Stands for "store a new key" in the list of secrets. */
const NEW = "\0new";

function Fields({
  draft,
  onChange,
  preset,
  presets,
}: {
  draft: AgentDraft;
  onChange: (draft: AgentDraft) => void;
  preset: Preset | undefined;
  presets: Preset[];
}) {
  const secrets = useSecrets();
  const [newKey, setNewKey] = useState(false);
  const set = (name: keyof AgentDraft) => (event: { target: { value: string } }) =>
    onChange({ ...draft, [name]: event.target.value });
  const variable = variableOf(draft, preset);
  const names = [...new Set([...(secrets.data?.items.map((one) => one.name) ?? []), draft.secret].filter(Boolean))];
  return (
    <>
      <div className="grid gap-4 sm:grid-cols-2">
        <SelectField
          label="Program"
          required
          value={draft.preset}
          onChange={(event) => {
            const usual = presets.find((one) => one.preset === event.target.value)?.usual_secret ?? "";
            // A key that is stored under its usual name is the one that is meant.
            const secret = names.includes(usual) ? usual : "";
            const titles = presets.map((one) => one.title);
            const title = presets.find((one) => one.preset === event.target.value)?.title ?? "";
            // A name that was not typed follows the program.
            const name = draft.name === "" || titles.includes(draft.name) ? title : draft.name;
            setNewKey(usual !== "" && secret === "" && may("admin"));
            onChange({ ...draft, preset: event.target.value, variable: "", secret, name, key: "" });
          }}
        >
          <option value="">Choose one</option>
          {presets.map((one) => (
            <option key={one.preset} value={one.preset}>
              {one.title}
            </option>
          ))}
        </SelectField>
        {preset?.takes_model !== false && (
          <TextField label="Model" value={draft.model} onChange={set("model")} placeholder="the program's default" />
        )}
        <TemplatePicker
          label="Template"
          value={draft.template}
          onChange={(template) => onChange({ ...draft, template })}
        />
        {variable !== "" || draft.preset === "custom" ? (
          <SelectField
            label={variable === "" ? "Secret" : `Secret for ${variable}`}
            value={newKey ? NEW : draft.secret}
            onChange={(event) => {
              setNewKey(event.target.value === NEW);
              onChange({ ...draft, secret: event.target.value === NEW ? "" : event.target.value, key: "" });
            }}
          >
            <option value="">None</option>
            {names.map((one) => (
              <option key={one}>{one}</option>
            ))}
            {variable !== "" && may("admin") && <option value={NEW}>Store a new key…</option>}
          </SelectField>
        ) : null}
        {newKey && (
          <TextField
            label={`Key, stored as the secret ${variable}`}
            type="password"
            autoComplete="off"
            required
            value={draft.key}
            onChange={set("key")}
            hint="Encrypted at rest and never shown again."
          />
        )}
      </div>
      {preset?.command.length === 0 && (
        <TextArea
          label="Command"
          required
          value={draft.command}
          onChange={set("command")}
          placeholder="my-agent --prompt {prompt}"
          hint="A program and its arguments, without a shell. {prompt} and {model} are filled in."
        />
      )}
      {preset?.recipe != null && draft.template === "" ? (
        <p className="text-xs text-dim">
          {preset.recipe.state === "ready"
            ? `Its template ${preset.recipe.template} is ready.`
            : `The server builds its template ${preset.recipe.template} before the first attempt, which takes some minutes.`}
        </p>
      ) : (
        <p className="text-xs text-dim">
          The template must have the program installed.{" "}
          <Link to="/templates/new" className="text-accent underline">
            Build a template
          </Link>{" "}
          if the default does not.
        </p>
      )}
      <details className="rounded-md border border-line px-3 py-2">
        <summary className="font-medium">Command, prompt, environment and limits</summary>
        <div className="mt-3 space-y-4 pb-1">
          {preset?.command.length !== 0 && (
            <TextArea
              label="Command"
              value={draft.command}
              onChange={set("command")}
              placeholder={preset?.command.join(" ").slice(0, 80)}
              hint="A program and its arguments, without a shell. {prompt} and {model} are filled in."
            />
          )}
          <TextArea
            label="Prompt"
            value={draft.prompt}
            onChange={set("prompt")}
            placeholder="the default prompt"
            hint="{{title}}, {{description}}, {{messages}}, {{branch}} and {{check}} are filled in."
          />
          <TextArea
            label="Environment"
            value={draft.env}
            onChange={set("env")}
            placeholder="NAME=value"
            hint="One NAME=value per line. A stored value is not shown; leave it empty to keep it."
          />
          <div className="grid gap-4 sm:grid-cols-2">
            <TextField
              label="Variable for its key"
              className="font-mono"
              value={variable}
              onChange={set("variable")}
              placeholder="ANTHROPIC_API_KEY"
            />
            <TextField
              label="Directory"
              className="font-mono"
              value={draft.directory}
              onChange={set("directory")}
              placeholder="the repository"
              hint="Relative to the repository."
            />
            <TextField
              label="Processors"
              type="number"
              min="1"
              value={draft.cpus}
              onChange={set("cpus")}
              placeholder="the server's default"
            />
            <TextField
              label="Memory (MiB)"
              type="number"
              min="64"
              value={draft.memory}
              onChange={set("memory")}
              placeholder="the server's default"
            />
            <TextField
              label="Time for a turn (minutes)"
              type="number"
              min="1"
              max="1440"
              value={draft.minutes}
              onChange={set("minutes")}
              placeholder="60"
            />
          </div>
        </div>
      </details>
    </>
  );
}

interface Props {
  /** The agent to change; a new one without it. */
  agent?: Agent;
  onClose: () => void;
  onSaved?: (agent: Agent) => void;
}

export function AgentDialog({ agent, onClose, onSaved }: Props) {
  const queries = useQueryClient();
  const presets = usePresets().data ?? [];
  const [before] = useState(() =>
    agent === undefined ? BLANK_AGENT : toDraft(agent.name, agent.definition ?? undefined),
  );
  const [draft, setDraft] = useState(before);
  const preset = presets.find((one) => one.preset === draft.preset);
  const definition = () => toDefinition(draft, preset, agent?.definition ?? undefined);
  const save = useMutation({
    mutationFn: async () => {
      let wanted = draft;
      if (draft.key !== "") {
        const secret = variableOf(draft, preset);
        await take(api.PUT("/api/v1/secrets/{secret}", { params: { path: { secret } }, body: { value: draft.key } }));
        wanted = { ...draft, secret };
        void queries.invalidateQueries({ queryKey: ["secrets"] });
      }
      const body = toDefinition(wanted, preset, agent?.definition ?? undefined);
      if (agent === undefined)
        return take(api.POST("/api/v1/agents", { body: { name: draft.name, definition: body } }));
      return take(
        api.PUT("/api/v1/agents/{agent}/definition", {
          params: { path: { agent: agent.id }, header: { "If-Match": `"${agent.version}"` } },
          body,
        }),
      );
    },
    onSuccess: async (saved) => {
      toast.success(agent === undefined ? `Created ${plainText(saved.name)}` : "Saved; the next attempt uses it");
      await queries.invalidateQueries({ queryKey: ["agents"] });
      onSaved?.(saved);
      onClose();
    },
  });
  const recipe = () => {
    try {
      return definition();
    } catch {
      return {};
    }
  };
  return (
    <FormDialog
      wide
      onClose={onClose}
      dirty={JSON.stringify(draft) !== JSON.stringify(before)}
      title={agent === undefined ? "New agent" : `Edit ${plainText(agent.name)}`}
      description={agent === undefined ? "A program that works on tasks, in sandboxes of its own." : undefined}
      action={agent === undefined ? "Create" : "Save"}
      send={save}
      recipe={{
        curl:
          agent === undefined
            ? curl("POST", "/api/v1/agents", { name: draft.name, definition: recipe() })
            : curl("PUT", `/api/v1/agents/${agent.id}/definition`, recipe()),
      }}
    >
      {agent === undefined && (
        <TextField
          label="Name"
          required
          autoFocus
          value={draft.name}
          onChange={(event) => setDraft({ ...draft, name: event.target.value })}
        />
      )}
      <Fields draft={draft} onChange={setDraft} preset={preset} presets={presets} />
    </FormDialog>
  );
}
