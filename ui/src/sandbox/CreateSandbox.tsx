import { useState, type FormEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useAgents } from "../api/agents";
import { api, take } from "../api/client";
import { TemplatePicker } from "../templates/TemplatePicker";
import { Button } from "../ui/Button";
import { CopyAs } from "../ui/CopyAs";
import { Dialog } from "../ui/Dialog";
import { ErrorBox } from "../ui/feedback";
import { CheckField, SelectField, TextArea, TextField } from "../ui/fields";
import { mebibytes } from "../ui/format";
import { SizeField } from "../ui/SizeField";
import { Mounts } from "./Mounts";
import { blankDraft, recipeOf, toNewSandbox, type Draft, type NewSandbox } from "./newSandbox";

interface Props {
  onClose: () => void;
  /** What it starts with, where a page of a template or a volume leads here. */
  template?: string;
  volume?: string;
}

const same = (one: Draft, other: Draft) => JSON.stringify(one) === JSON.stringify(other);

export function CreateSandbox({ onClose, template, volume }: Props) {
  const queries = useQueryClient();
  const navigate = useNavigate();
  const agents = useAgents();
  const host = useQuery({ queryKey: ["host"], queryFn: () => take(api.GET("/api/v1/host")), staleTime: 60_000 });
  const largest = host.data?.largest_sandbox;
  const [first] = useState(() => blankDraft(template, volume));
  const [draft, setDraft] = useState(first);
  const set = (next: Partial<Draft>) => setDraft((old) => ({ ...old, ...next }));
  // The same answer to a button that is pressed twice, or to a request that is repeated.
  const [idempotencyKey] = useState(() => crypto.getRandomValues(new Uint32Array(4)).join("-"));

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
      create.mutate(toNewSandbox(draft));
    } catch (error) {
      setBad(error as Error);
    }
  };

  return (
    <Dialog open onClose={onClose} title="New sandbox" wide dirty={!same(first, draft)}>
      <form onSubmit={submit} className="space-y-4">
        <div className="grid gap-4 sm:grid-cols-2">
          <TextField
            label="Name"
            autoFocus
            maxLength={80}
            value={draft.name}
            onChange={(event) => set({ name: event.target.value })}
            hint="Saved in its metadata."
          />
          <TemplatePicker label="Template" value={draft.template} onChange={(name) => set({ template: name })} />
          <div className="flex items-end gap-2">
            <div className="flex-1">
              <TextField
                label="Time limit"
                type="number"
                min="1"
                step="any"
                required
                value={draft.amount}
                onChange={(event) => set({ amount: event.target.value })}
              />
            </div>
            <div className="w-28">
              <SelectField
                label="Unit"
                hideLabel
                value={draft.unit}
                onChange={(event) => set({ unit: event.target.value as Draft["unit"] })}
              >
                <option value="m">minutes</option>
                <option value="h">hours</option>
              </SelectField>
            </div>
          </div>
          <SelectField
            label="At the time limit"
            value={draft.atEnd}
            onChange={(event) => set({ atEnd: event.target.value })}
          >
            <option value="">Project default</option>
            <option value="kill">Destroy</option>
            <option value="pause">Pause, with memory</option>
            <option value="pause_files_only">Pause, files only</option>
          </SelectField>
          <SelectField
            label="Network"
            value={draft.network}
            onChange={(event) => set({ network: event.target.value })}
            hint="You can change it later under Network."
          >
            <option value="">The web (ports 80 and 443)</option>
            <option value="public">Everything public</option>
            <option value="none">Nothing</option>
          </SelectField>
          <SelectField label="Owner" value={draft.agent} onChange={(event) => set({ agent: event.target.value })}>
            <option value="">No agent</option>
            {agents.data?.items.map((one) => (
              <option key={one.id} value={one.id}>
                {one.name}
              </option>
            ))}
          </SelectField>
        </div>
        <details className="rounded-md border border-line">
          <summary className="px-3 py-2 text-sm font-medium">Size</summary>
          <div className="grid gap-4 p-3 sm:grid-cols-3">
            <TextField
              label="Processors"
              type="number"
              min="1"
              max={largest?.cpu_count}
              step="1"
              placeholder="default"
              value={draft.cpus}
              onChange={(event) => set({ cpus: event.target.value })}
              hint={largest === undefined ? undefined : `Up to ${largest.cpu_count} on this host.`}
            />
            <SizeField
              label="Memory"
              least={64}
              most={largest?.memory_mib}
              placeholder="default"
              value={draft.memoryMib}
              onChange={(mib) => set({ memoryMib: mib })}
              hint={largest === undefined ? undefined : `Up to ${mebibytes(largest.memory_mib)}.`}
            />
            <SizeField
              label="Disk"
              least={16}
              most={largest?.disk_mib}
              placeholder="default"
              value={draft.diskMib}
              onChange={(mib) => set({ diskMib: mib })}
              hint={largest === undefined ? undefined : `Up to ${mebibytes(largest.disk_mib)}.`}
            />
          </div>
        </details>
        <details className="rounded-md border border-line" open={draft.mounts.length > 0 || undefined}>
          <summary className="px-3 py-2 text-sm font-medium">
            Volumes{draft.mounts.length > 0 && ` (${draft.mounts.length})`}
          </summary>
          <div className="p-3">
            <Mounts mounts={draft.mounts} onChange={(mounts) => set({ mounts })} />
          </div>
        </details>
        <details className="rounded-md border border-line">
          <summary className="px-3 py-2 text-sm font-medium">Environment and metadata</summary>
          <div className="grid gap-4 p-3 sm:grid-cols-2">
            <TextArea
              label="Environment"
              value={draft.env}
              onChange={(event) => set({ env: event.target.value })}
              placeholder={"NAME=value\nOTHER=value"}
              hint="One NAME=value per line. Use secrets for sensitive values."
            />
            <TextArea
              label="Metadata"
              value={draft.metadata}
              onChange={(event) => set({ metadata: event.target.value })}
              placeholder="ticket=ABC-1"
              hint="One name=value per line, for filters."
            />
            <CheckField
              label="Resume on traffic"
              checked={draft.autoResume}
              onChange={(event) => set({ autoResume: event.target.checked })}
              hint="A paused sandbox resumes when a request reaches it."
            />
          </div>
        </details>
        {bad !== undefined && <ErrorBox error={bad} />}
        {create.error !== null && <ErrorBox error={create.error} />}
        <div className="flex items-center justify-end gap-2">
          <CopyAs recipe={recipeOf(draft)} />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={create.isPending}>
            Create
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
