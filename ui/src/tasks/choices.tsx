// The agent and the repository of a task: picked from those that exist, or created in place.
import { useState } from "react";
import { Plus } from "lucide-react";
import { useAgents } from "../api/agents";
import { may } from "../api/session";
import { NewRepository } from "../repositories/NewRepository";
import { useRepositories } from "../repositories/Repositories";
import { AgentDialog } from "../settings/AgentForm";
import { Button } from "../ui/Button";
import { SelectField } from "../ui/fields";
import { plainText } from "../ui/format";

interface Props {
  value: string;
  onChange: (value: string) => void;
  required?: boolean;
}

/** The only agent and the only repository of a project are meant, if nothing is said. */
export function useOnlyChoices() {
  const runnable = useAgents().data?.items.filter((agent) => agent.definition) ?? [];
  const repositories = useRepositories().data?.items ?? [];
  return {
    agent: runnable.length === 1 ? runnable[0]?.id : undefined,
    repository: repositories.length === 1 ? repositories[0]?.name : undefined,
  };
}

/** Of an agent, its id. Only agents with a program can work on tasks. */
export function AgentField({ value, onChange, required = false }: Props) {
  const { data } = useAgents();
  const [creating, setCreating] = useState(false);
  const runnable = data?.items.filter((agent) => agent.definition || agent.id === value) ?? [];
  const none = data !== undefined && runnable.length === 0;
  return (
    <div className="flex items-end gap-1.5">
      <div className="min-w-0 flex-1">
        <SelectField
          label="Agent"
          required={required}
          value={value}
          onChange={(event) => onChange(event.target.value)}
          hint={none ? "No agents yet. Create one with the button." : undefined}
        >
          <option value="">{required ? "Choose one" : "None yet"}</option>
          {runnable.map((one) => (
            <option key={one.id} value={one.id}>
              {plainText(one.name)}
            </option>
          ))}
        </SelectField>
      </div>
      <Button
        aria-label="New agent"
        title={may("admin") ? "New agent" : "Only an admin's key can create agents"}
        disabled={!may("admin")}
        className={none ? "mb-5" : undefined}
        onClick={() => setCreating(true)}
        icon={<Plus aria-hidden className="size-4" />}
      />
      {creating && <AgentDialog onClose={() => setCreating(false)} onSaved={(agent) => onChange(agent.id)} />}
    </div>
  );
}

/** Of a repository, its name. */
export function RepositoryField({ value, onChange, required = false }: Props) {
  const { data } = useRepositories();
  const [creating, setCreating] = useState(false);
  const known = data?.items.some((one) => one.name === value) === true;
  const none = data !== undefined && data.items.length === 0;
  return (
    <div className="flex items-end gap-1.5">
      <div className="min-w-0 flex-1">
        <SelectField
          label="Repository"
          required={required}
          value={value}
          onChange={(event) => onChange(event.target.value)}
          hint={none ? "No repositories yet. Create one with the button." : undefined}
        >
          <option value="">{required ? "Choose one" : "None yet"}</option>
          {!known && value !== "" && <option value={value}>{plainText(value)}</option>}
          {data?.items.map((one) => (
            <option key={one.id} value={one.name}>
              {plainText(one.name)}
            </option>
          ))}
        </SelectField>
      </div>
      <Button
        aria-label="New repository"
        title="New repository"
        disabled={!may("write")}
        className={none ? "mb-5" : undefined}
        onClick={() => setCreating(true)}
        icon={<Plus aria-hidden className="size-4" />}
      />
      {creating && <NewRepository onClose={() => setCreating(false)} onMade={onChange} />}
    </div>
  );
}
