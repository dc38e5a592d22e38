// What a project may use. Only an operator changes it.
import { useState, type FormEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { toast } from "sonner";
import type { Schemas } from "../api/client";
import { Button } from "../ui/Button";
import { CopyAs } from "../ui/CopyAs";
import { ErrorBox, Loaded } from "../ui/feedback";
import { TextField } from "../ui/fields";
import { readTagged, writeTagged, type Tagged } from "./tagged";

type State = Schemas["QuotaState"];
type Shape = Schemas["QuotasShape"];

const FIELDS: [keyof Shape, string][] = [
  ["sandboxes", "Running sandboxes"],
  ["cpus", "Processors"],
  ["memory_mib", "Memory, in MiB"],
  ["disk_mib", "Disk, in MiB"],
  ["forks", "Concurrent forks"],
  ["runs", "Concurrent attempts"],
  ["storage_mib", "Repositories, LFS and artifacts, in MiB"],
];

function Form({ project, state }: { project: string; state: Tagged<State> }) {
  const queries = useQueryClient();
  const { own, limits } = state.value;
  // Only what was written here: the rest follows what others change, and whoever was late keeps their text.
  const [drafts, setDrafts] = useState<Record<string, string>>({});
  const texts: Record<string, string> = Object.fromEntries(
    FIELDS.map(([name]) => [name, drafts[name] ?? String(own[name] ?? "")]),
  );
  const wanted = (): Shape =>
    Object.fromEntries(FIELDS.filter(([name]) => texts[name] !== "").map(([name]) => [name, Number(texts[name])]));
  const path = `/api/v1/projects/${project}/quotas`;
  const save = useMutation({
    mutationFn: () => writeTagged<State>("PUT", path, wanted(), state.tag, "operator"),
    onSuccess: (next) => {
      queries.setQueryData(["project-quotas", project], next);
      setDrafts({});
      void queries.invalidateQueries({ queryKey: ["quotas"] });
      toast.success("Saved");
    },
    onError: () => void queries.invalidateQueries({ queryKey: ["project-quotas", project] }),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    save.mutate();
  };
  return (
    <form onSubmit={submit} className="space-y-4">
      <div className="grid gap-4 sm:grid-cols-2">
        {FIELDS.map(([name, label]) => (
          <TextField
            key={name}
            label={label}
            type="number"
            min="0"
            value={texts[name] ?? ""}
            onChange={(event) => setDrafts((all) => ({ ...all, [name]: event.target.value }))}
            placeholder="the server's default"
            hint={`Now: ${limits[name] ?? "no limit"}`}
          />
        ))}
      </div>
      {save.error !== null && <ErrorBox error={save.error} />}
      <div className="flex justify-end gap-2">
        <CopyAs
          recipe={{
            curl: `curl -sS -X PUT -H "X-API-KEY: $(cat data/operator-key)" "$COFFER_URL${path}" -d '${JSON.stringify(wanted())}'`,
          }}
        />
        <Button type="submit" tone="primary" busy={save.isPending}>
          Save
        </Button>
      </div>
    </form>
  );
}

export function Quotas({ project }: { project: string }) {
  const query = useQuery({
    queryKey: ["project-quotas", project],
    queryFn: () => readTagged<State>(`/api/v1/projects/${project}/quotas`, "operator"),
    staleTime: 0,
  });
  return <Loaded query={query}>{(state) => <Form key={project} project={project} state={state} />}</Loaded>;
}
