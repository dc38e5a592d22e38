// Who competes: a row for each fork, with its agent, and a model or a prompt of its own.
import { Link } from "@tanstack/react-router";
import { Plus, Trash2 } from "lucide-react";
import { useAgents } from "../api/agents";
import type { Schemas } from "../api/client";
import { Button } from "../ui/Button";
import { SelectField, TextArea, TextField } from "../ui/fields";
import { plainText } from "../ui/format";

type NewEntry = Schemas["NewCompetitionEntry"];

export interface Draft {
  agent: string;
  model: string;
  label: string;
  prompt: string;
}

/** What a form may ask for; the server may allow fewer. */
const MOST = 10;

export const blank = (agent = ""): Draft => ({ agent, model: "", label: "", prompt: "" });

export function toEntries(drafts: Draft[]): NewEntry[] {
  return drafts.map(({ agent, model, label, prompt }) => ({
    agent_id: agent,
    ...(model === "" ? {} : { model }),
    ...(label === "" ? {} : { label }),
    ...(prompt === "" ? {} : { prompt }),
  }));
}

export function Entries({ drafts, onChange }: { drafts: Draft[]; onChange: (drafts: Draft[]) => void }) {
  const agents = useAgents();
  const runnable = agents.data?.items.filter((agent) => agent.definition) ?? [];
  const change = (at: number, next: Partial<Draft>) =>
    onChange(drafts.map((draft, place) => (place === at ? { ...draft, ...next } : draft)));
  return (
    <fieldset className="space-y-3">
      <legend className="mb-2 font-medium">Forks</legend>
      {agents.data !== undefined && runnable.length === 0 && (
        <p className="text-dim">
          No agents yet.{" "}
          <Link to="/settings/agents" className="text-accent underline">
            Create an agent
          </Link>{" "}
          first.
        </p>
      )}
      <ol className="space-y-3">
        {drafts.map((draft, at) => (
          <li key={at} className="space-y-3 rounded-lg border border-line p-3">
            <div className="flex items-end gap-2">
              <div className="grid min-w-0 flex-1 gap-3 sm:grid-cols-3">
                <SelectField
                  label={`Agent of fork ${at + 1}`}
                  required
                  value={draft.agent}
                  onChange={(event) => change(at, { agent: event.target.value })}
                >
                  <option value="">Choose one</option>
                  {runnable.map((agent) => (
                    <option key={agent.id} value={agent.id}>
                      {plainText(agent.name)}
                    </option>
                  ))}
                </SelectField>
                <TextField
                  label={`Model of fork ${at + 1}`}
                  value={draft.model}
                  onChange={(event) => change(at, { model: event.target.value })}
                  placeholder="the agent's own"
                />
                <TextField
                  label={`Name of fork ${at + 1}`}
                  value={draft.label}
                  onChange={(event) => change(at, { label: event.target.value })}
                  placeholder="the agent's"
                />
              </div>
              <Button
                tone="ghost"
                aria-label={`Remove fork ${at + 1}`}
                disabled={drafts.length === 1}
                onClick={() => onChange(drafts.filter((_, place) => place !== at))}
                icon={<Trash2 aria-hidden className="size-4" />}
              />
            </div>
            <details open={draft.prompt !== ""}>
              <summary className="text-sm text-dim">Own prompt</summary>
              <TextArea
                label={`Prompt of fork ${at + 1}`}
                hideLabel
                value={draft.prompt}
                onChange={(event) => change(at, { prompt: event.target.value })}
                className="mt-2 font-sans"
                placeholder="In place of the common one"
              />
            </details>
          </li>
        ))}
      </ol>
      <Button
        disabled={drafts.length >= MOST}
        onClick={() => onChange([...drafts, blank(drafts.at(-1)?.agent)])}
        icon={<Plus aria-hidden className="size-4" />}
      >
        Add fork
      </Button>
    </fieldset>
  );
}
