// How an agent is run, changed. What the form does not show stays; values of its environment are never shown, and null keeps them.
import { useState, type FormEvent } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { toast } from "sonner";
import { api, take, type Schemas } from "../api/client";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Dialog } from "../ui/Dialog";
import { ErrorBox } from "../ui/feedback";
import { SelectField, TextArea, TextField } from "../ui/fields";
import { plainText } from "../ui/format";
import { toLine, toWords } from "./words";

type Agent = Schemas["Agent"];
type Definition = Schemas["AgentDefinition"];
type Preset = Schemas["PresetInfo"];

interface Props {
  agent: Agent;
  presets: Preset[];
  secrets: string[];
  onClose: () => void;
}

export function EditAgent({ agent, presets, secrets, onClose }: Props) {
  const queries = useQueryClient();
  const before = agent.definition ?? undefined;
  const [preset, setPreset] = useState<string>(before?.preset ?? "");
  const [model, setModel] = useState(before?.model ?? "");
  const [command, setCommand] = useState(toLine(before?.command ?? []));
  const [prompt, setPrompt] = useState(before?.prompt ?? "");
  const [known, ...others] = Object.entries(before?.secrets ?? {});
  const [variable, setVariable] = useState(known?.[0] ?? "");
  const [secret, setSecret] = useState(known?.[1] ?? "");
  const chosen = presets.find((one) => one.preset === preset);
  const name = variable || (chosen?.usual_secret ?? "");
  const wanted = (): Definition => ({
    ...before,
    preset: preset as Definition["preset"],
    model: model === "" ? null : model,
    command: command.trim() === "" ? null : toWords(command),
    prompt: prompt.trim() === "" ? null : prompt,
    secrets: { ...Object.fromEntries(others), ...(secret === "" || name === "" ? {} : { [name]: secret }) },
  });
  const save = useMutation({
    mutationFn: () =>
      take(
        api.PUT("/api/v1/agents/{agent}/definition", {
          params: { path: { agent: agent.id }, header: { "If-Match": `"${agent.version}"` } },
          body: wanted(),
        }),
      ),
    onSuccess: () => {
      toast.success("It holds from the next attempt on");
      void queries.invalidateQueries({ queryKey: ["agents"] });
      onClose();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    save.mutate();
  };
  return (
    <Dialog open wide onClose={onClose} title={`Change ${plainText(agent.name)}`}>
      <form onSubmit={submit} className="space-y-4">
        <div className="grid gap-4 sm:grid-cols-2">
          <SelectField label="What it runs" required value={preset} onChange={(event) => setPreset(event.target.value)}>
            <option value="">Choose one</option>
            {presets.map((one) => (
              <option key={one.preset} value={one.preset}>
                {one.title}
              </option>
            ))}
          </SelectField>
          <TextField
            label="Model"
            value={model}
            onChange={(event) => setModel(event.target.value)}
            placeholder="its own choice"
          />
          <TextField
            label="Variable for its key"
            className="font-mono"
            value={name}
            onChange={(event) => setVariable(event.target.value)}
          />
          <SelectField label="Secret with the key" value={secret} onChange={(event) => setSecret(event.target.value)}>
            <option value="">None</option>
            {[...new Set([...secrets, ...(secret === "" ? [] : [secret])])].map((one) => (
              <option key={one}>{one}</option>
            ))}
          </SelectField>
        </div>
        {/* Words may have lines, which a field of one line would lose. */}
        <TextArea
          label="Command"
          required={chosen?.command.length === 0}
          value={command}
          onChange={(event) => setCommand(event.target.value)}
          placeholder={chosen?.command.join(" ").slice(0, 60)}
          hint="A program and its words, no shell; quotes hold words together, {prompt} and {model} are filled in."
        />
        <TextArea
          label="What it is told"
          value={prompt}
          onChange={(event) => setPrompt(event.target.value)}
          placeholder="the usual"
          hint="{{title}}, {{description}}, {{messages}}, {{branch}} and {{check}} are filled in."
        />
        {save.error !== null && <ErrorBox error={save.error} />}
        <div className="flex justify-end gap-2">
          <CopyAs recipe={{ curl: curl("PUT", `/api/v1/agents/${agent.id}/definition`, wanted()) }} />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={save.isPending}>
            Save
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
