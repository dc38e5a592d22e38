import { useState, type FormEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useAgents } from "../api/agents";
import { api, raw, take, type Schemas } from "../api/client";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Dialog } from "../ui/Dialog";
import { ErrorBox } from "../ui/feedback";
import { CheckField, SelectField, TextArea, TextField } from "../ui/fields";
import { parsePairs } from "./pairs";

type NewSandbox = Schemas["NewSandbox"];

const UNITS = { m: 60, h: 3600 } as const;

export function CreateSandbox({ onClose }: { onClose: () => void }) {
  const queries = useQueryClient();
  const navigate = useNavigate();
  const agents = useAgents();
  const templates = useQuery({
    queryKey: ["templates"],
    queryFn: async () => (await (await raw("/templates")).json()) as { templateID: string; names?: string[] }[],
  });
  const [name, setName] = useState("");
  const [template, setTemplate] = useState("");
  const [agent, setAgent] = useState("");
  const [amount, setAmount] = useState("1");
  const [unit, setUnit] = useState<keyof typeof UNITS>("h");
  const [atEnd, setAtEnd] = useState("");
  const [network, setNetwork] = useState("");
  const [autoResume, setAutoResume] = useState(false);
  const [env, setEnv] = useState("");
  const [metadata, setMetadata] = useState("");
  // The same answer to a button that is pressed twice, or to a request that is repeated.
  const [idempotencyKey] = useState(() => crypto.getRandomValues(new Uint32Array(4)).join("-"));

  const wanted = (): NewSandbox => ({
    ...(template === "" ? {} : { template }),
    ...(agent === "" ? {} : { agent_id: agent }),
    timeout_s: Math.max(1, Math.round(Number(amount) * UNITS[unit])),
    ...(atEnd === "" ? {} : { on_timeout: atEnd as NewSandbox["on_timeout"] }),
    ...(network === "" ? {} : { network: { base: network } }),
    ...(autoResume ? { auto_resume: true } : {}),
    ...(env.trim() === "" ? {} : { env: parsePairs(env) }),
    metadata: { ...parsePairs(metadata), ...(name.trim() === "" ? {} : { name: name.trim() }) },
  });

  const create = useMutation({
    mutationFn: (body: NewSandbox) =>
      take(api.POST("/api/v1/sandboxes", { body, params: { header: { "Idempotency-Key": idempotencyKey } } })),
    onSuccess: (made) => {
      queries.setQueryData(["sandbox", made.id], made);
      void queries.invalidateQueries({ queryKey: ["sandboxes"] });
      void navigate({ to: "/sandboxes/$id/terminal", params: { id: made.id } });
    },
  });

  const [bad, setBad] = useState<Error>();
  const submit = (event: FormEvent) => {
    event.preventDefault();
    try {
      setBad(undefined);
      create.mutate(wanted());
    } catch (error) {
      setBad(error as Error);
    }
  };
  const recipe = (): NewSandbox => {
    try {
      return wanted();
    } catch {
      return {};
    }
  };

  return (
    <Dialog open onClose={onClose} title="New sandbox" wide>
      <form onSubmit={submit} className="space-y-4">
        <div className="grid gap-4 sm:grid-cols-2">
          <TextField
            label="Name"
            autoFocus
            maxLength={80}
            value={name}
            onChange={(event) => setName(event.target.value)}
            hint="Kept in its metadata."
          />
          <SelectField label="Template" value={template} onChange={(event) => setTemplate(event.target.value)}>
            <option value="">The default</option>
            {templates.data?.map((one) => (
              <option key={one.templateID} value={one.templateID}>
                {one.names?.[0] ?? one.templateID}
              </option>
            ))}
          </SelectField>
          <div className="flex items-end gap-2">
            <div className="flex-1">
              <TextField
                label="Lives for"
                type="number"
                min="1"
                step="any"
                required
                value={amount}
                onChange={(event) => setAmount(event.target.value)}
              />
            </div>
            <div className="w-28">
              <SelectField
                label="Unit"
                hideLabel
                value={unit}
                onChange={(event) => setUnit(event.target.value as keyof typeof UNITS)}
              >
                <option value="m">minutes</option>
                <option value="h">hours</option>
              </SelectField>
            </div>
          </div>
          <SelectField label="Then" value={atEnd} onChange={(event) => setAtEnd(event.target.value)}>
            <option value="">As the project says</option>
            <option value="kill">It is destroyed</option>
            <option value="pause">It is paused, with memory</option>
            <option value="pause_files_only">It is paused, files only</option>
          </SelectField>
          <SelectField
            label="Network"
            value={network}
            onChange={(event) => setNetwork(event.target.value)}
            hint="Refine it later in its tab."
          >
            <option value="">The web (ports 80 and 443)</option>
            <option value="public">Everything public</option>
            <option value="none">Nothing</option>
          </SelectField>
          <SelectField label="Owner" value={agent} onChange={(event) => setAgent(event.target.value)}>
            <option value="">No agent</option>
            {agents.data?.items.map((one) => (
              <option key={one.id} value={one.id}>
                {one.name}
              </option>
            ))}
          </SelectField>
        </div>
        <details className="rounded-md border border-line">
          <summary className="px-3 py-2 text-sm font-medium">Environment and metadata</summary>
          <div className="grid gap-4 p-3 sm:grid-cols-2">
            <TextArea
              label="Environment"
              value={env}
              onChange={(event) => setEnv(event.target.value)}
              placeholder={"NAME=value\nOTHER=value"}
              hint="One a line. Use secrets for what is secret."
            />
            <TextArea
              label="Metadata"
              value={metadata}
              onChange={(event) => setMetadata(event.target.value)}
              placeholder="ticket=ABC-1"
              hint="One a line, to find it by."
            />
            <CheckField
              label="Wake it when it is used"
              checked={autoResume}
              onChange={(event) => setAutoResume(event.target.checked)}
              hint="A paused sandbox is resumed by traffic to it."
            />
          </div>
        </details>
        {bad !== undefined && <ErrorBox error={bad} />}
        {create.error !== null && <ErrorBox error={create.error} />}
        <div className="flex items-center justify-end gap-2">
          <CopyAs
            recipe={{
              python: `from e2b import Sandbox\nsandbox = Sandbox.create(${template === "" ? "" : `"${template}", `}timeout=${recipe().timeout_s ?? 3600})`,
              cli: `e2b sandbox create ${template === "" ? "base" : template}`,
              curl: curl("POST", "/api/v1/sandboxes", recipe()),
            }}
          />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={create.isPending}>
            Create
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
