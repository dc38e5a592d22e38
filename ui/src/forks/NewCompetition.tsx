// Begins a competition: by itself, or as an attempt at a task.
import { useState, type FormEvent } from "react";
import { useMutation } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { api, take, type Schemas } from "../api/client";
import { useRepositories } from "../repositories/Repositories";
import type { Task } from "../tasks/tasks";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Dialog } from "../ui/Dialog";
import { ErrorBox } from "../ui/feedback";
import { SelectField, TextArea, TextField } from "../ui/fields";
import { plainText } from "../ui/format";
import { useFreshForks, type Competition } from "./competitions";
import { blank, Entries, toEntries } from "./Entries";

type Rule = Competition["rule"];

function useTerms(agent?: string) {
  const [drafts, setDrafts] = useState(() => [blank(agent), blank(agent)]);
  const [rule, setRule] = useState<Rule>("manual");
  const [prepare, setPrepare] = useState("");
  const [budget, setBudget] = useState("");
  const body = () => ({
    entries: toEntries(drafts),
    rule,
    ...(prepare === "" ? {} : { prepare_command: prepare }),
    ...(budget === "" ? {} : { budget: Number(budget) }),
  });
  const fields = (
    <>
      <Entries drafts={drafts} onChange={setDrafts} />
      <div className="grid gap-4 sm:grid-cols-2">
        <SelectField label="Winner" value={rule} onChange={(event) => setRule(event.target.value as Rule)}>
          <option value="manual">I pick from the ranking</option>
          <option value="best">The best whose checks passed</option>
        </SelectField>
        <TextField
          label="Budget for all forks"
          type="number"
          min="0"
          step="any"
          value={budget}
          onChange={(event) => setBudget(event.target.value)}
          placeholder="no limit"
        />
        <TextField
          label="Prepare"
          className="font-mono"
          value={prepare}
          onChange={(event) => setPrepare(event.target.value)}
          placeholder="npm ci"
          hint="Runs once in the repository, before the sandbox is forked."
        />
      </div>
    </>
  );
  return { body, fields };
}

export function NewCompetition({ onClose }: { onClose: () => void }) {
  const navigate = useNavigate();
  const fresh = useFreshForks();
  const repositories = useRepositories();
  const terms = useTerms();
  const [title, setTitle] = useState("");
  const [prompt, setPrompt] = useState("");
  const [repository, setRepository] = useState("");
  const [base, setBase] = useState("");
  const [check, setCheck] = useState("");
  const body = (): Schemas["NewCompetition"] => ({
    title,
    prompt,
    ...(repository === "" ? {} : { repository }),
    ...(base === "" ? {} : { base_branch: base }),
    ...(check === "" ? {} : { check_command: check }),
    ...terms.body(),
  });
  const make = useMutation({
    mutationFn: () => take(api.POST("/api/v1/sandboxes/fork", { body: body() })),
    onSuccess: async (competition) => {
      await fresh();
      await navigate({ to: "/forks/$fork", params: { fork: competition.id } });
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate();
  };
  return (
    <Dialog
      open
      onClose={onClose}
      title="Let agents compete"
      description="One prepared sandbox is forked; each fork has an agent that tries."
      wide
    >
      <form onSubmit={submit} className="space-y-4">
        <TextField label="Title" required autoFocus value={title} onChange={(event) => setTitle(event.target.value)} />
        <TextArea
          label="Description"
          required
          value={prompt}
          onChange={(event) => setPrompt(event.target.value)}
          className="min-h-24 font-sans"
          hint="Every agent reads this, unless its fork has a prompt of its own."
        />
        <div className="grid gap-4 sm:grid-cols-3">
          <SelectField
            label="Repository"
            required
            value={repository}
            onChange={(event) => setRepository(event.target.value)}
          >
            <option value="">Choose one</option>
            {repositories.data?.items.map((one) => (
              <option key={one.id} value={one.name}>
                {plainText(one.name)}
              </option>
            ))}
          </SelectField>
          <TextField
            label="From branch"
            value={base}
            onChange={(event) => setBase(event.target.value)}
            placeholder="the default branch"
          />
          <TextField
            label="Check"
            className="font-mono"
            value={check}
            onChange={(event) => setCheck(event.target.value)}
            placeholder="make test"
          />
        </div>
        {terms.fields}
        {make.error !== null && <ErrorBox error={make.error} />}
        <div className="flex justify-end gap-2">
          <CopyAs recipe={{ curl: curl("POST", "/api/v1/sandboxes/fork", body()) }} />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={make.isPending}>
            Start
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

export function CompeteForTask({ task, onClose }: { task: Task; onClose: () => void }) {
  const fresh = useFreshForks();
  const terms = useTerms(task.agent_id ?? undefined);
  const start = useMutation({
    mutationFn: () =>
      take(
        api.POST("/api/v1/tasks/{task}/start", {
          params: { path: { task: task.id } },
          body: { compete: terms.body() },
        }),
      ),
    onSuccess: async () => {
      await fresh();
      onClose();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    start.mutate();
  };
  return (
    <Dialog
      open
      onClose={onClose}
      title="Let agents compete for it"
      description="Each tries in a fork of one prepared sandbox; what the winner made becomes the task's pull request."
      wide
    >
      <form onSubmit={submit} className="space-y-4">
        {terms.fields}
        {start.error !== null && <ErrorBox error={start.error} />}
        <div className="flex justify-end gap-2">
          <CopyAs recipe={{ curl: curl("POST", `/api/v1/tasks/${task.id}/start`, { compete: terms.body() }) }} />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={start.isPending}>
            Start
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
