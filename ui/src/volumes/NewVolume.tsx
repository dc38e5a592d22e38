import { useState, type FormEvent } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { toast } from "sonner";
import { api, take, type Schemas } from "../api/client";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Dialog } from "../ui/Dialog";
import { ErrorBox } from "../ui/feedback";
import { TextField } from "../ui/fields";
import { SizeField } from "../ui/SizeField";
import { nameProblem, type Volume } from "./volumes";

interface Props {
  taken: string[];
  onClose: () => void;
  onCreated?: (volume: Volume) => void;
}

export function NewVolume({ taken, onClose, onCreated }: Props) {
  const queries = useQueryClient();
  const [name, setName] = useState("");
  const [mib, setMib] = useState<number>();
  const body: Schemas["NewVolume"] = { name, ...(mib === undefined ? {} : { size_mib: mib }) };
  const problem = nameProblem(name, taken);
  const create = useMutation({
    mutationFn: () => take(api.POST("/api/v1/volumes", { body })),
    onSuccess: async (made) => {
      await queries.invalidateQueries({ queryKey: ["volumes"] });
      toast.success(`Volume ${made.name} created`);
      onCreated?.(made);
      onClose();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    // In a dialog over another form, which must not be sent too.
    event.stopPropagation();
    if (problem === undefined) create.mutate();
  };
  return (
    <Dialog
      open
      onClose={onClose}
      title="New volume"
      description="A directory that keeps its files when sandboxes end. Several sandboxes can mount it at once."
      dirty={name !== "" || mib !== undefined}
    >
      <form onSubmit={submit} className="space-y-4">
        <div>
          <TextField
            label="Name"
            required
            autoFocus
            maxLength={128}
            placeholder="pip-cache"
            value={name}
            aria-invalid={problem !== undefined}
            onChange={(event) => setName(event.target.value)}
            hint="Sandboxes mount it by this name."
          />
          <p role="status" className="text-xs text-bad">
            {problem}
          </p>
        </div>
        <SizeField
          label="Size limit"
          value={mib}
          onChange={setMib}
          placeholder="the server's default"
          hint="Counts in the project's disk quota until the volume is deleted, even while it is empty."
        />
        {create.error !== null && <ErrorBox error={create.error} />}
        <div className="flex justify-end gap-2">
          <CopyAs
            recipe={{
              python: `from e2b import Volume\nvolume = Volume.create("${name || "pip-cache"}")`,
              js: `import { Volume } from 'e2b'\nconst volume = await Volume.create('${name || "pip-cache"}')`,
              curl: curl("POST", "/api/v1/volumes", { ...body, name: name || "pip-cache" }),
            }}
          />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={create.isPending} disabled={problem !== undefined}>
            Create
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
