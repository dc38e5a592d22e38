// Which volumes a new sandbox mounts, and where.
import { useState } from "react";
import { Plus, X } from "lucide-react";
import { session, whyNot } from "../api/session";
import { Button } from "../ui/Button";
import { SelectField, Switch, TextField } from "../ui/fields";
import { plainText } from "../ui/format";
import { NewVolume } from "../volumes/NewVolume";
import { useVolumes, type NewMount } from "../volumes/volumes";
import { mountPath } from "./newSandbox";

const MOST = 16;

export function Mounts({ mounts, onChange }: { mounts: NewMount[]; onChange: (mounts: NewMount[]) => void }) {
  const { data, isPending, error } = useVolumes();
  const [creating, setCreating] = useState(false);
  const volumes = data?.items ?? [];
  const names = volumes.map(({ name }) => name);
  // The server lets agents read volumes and no more: what one writes, other sandboxes could run.
  const agent = session()?.project?.agentId !== undefined;
  const change = (at: number, next: Partial<NewMount>) =>
    onChange(mounts.map((mount, index) => (index === at ? { ...mount, ...next } : mount)));
  const add = (name: string) => onChange([...mounts, { name, path: mountPath(name, mounts), read_only: agent }]);
  const unused = names.find((name) => !mounts.some((mount) => mount.name === name));
  return (
    <div className="space-y-3">
      {mounts.map((mount, at) => (
        <div
          key={at}
          className="grid grid-cols-[minmax(0,1fr)_auto] items-end gap-2 sm:grid-cols-[minmax(0,1fr)_minmax(0,1fr)_auto_auto]"
        >
          <div className="max-sm:col-span-2">
            <SelectField
              label={`Volume ${at + 1}`}
              value={mount.name}
              onChange={(event) => change(at, { name: event.target.value })}
            >
              {!names.includes(mount.name) && <option value={mount.name}>{plainText(mount.name)}</option>}
              {names.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </SelectField>
          </div>
          <div className="max-sm:col-span-2">
            <TextField
              label={`Mount path ${at + 1}`}
              className="font-mono"
              required
              placeholder="/data"
              value={mount.path}
              onChange={(event) => change(at, { path: event.target.value })}
            />
          </div>
          <Switch
            label="Read-only"
            checked={mount.read_only ?? false}
            disabled={agent}
            onChange={(on) => change(at, { read_only: on })}
          />
          <Button
            tone="ghost"
            aria-label={`Do not mount ${mount.name}`}
            onClick={() => onChange(mounts.filter((_, index) => index !== at))}
            icon={<X aria-hidden className="size-4" />}
          />
        </div>
      ))}
      {error !== null && <p className="text-xs text-bad">The volumes of the project could not be loaded.</p>}
      {!isPending && error === null && volumes.length === 0 && (
        <p className="text-dim">The project has no volumes yet. A volume keeps files when sandboxes end.</p>
      )}
      {agent && mounts.length > 0 && <p className="text-xs text-dim">An agent&apos;s key mounts volumes read-only.</p>}
      <div className="flex flex-wrap gap-2">
        {volumes.length > 0 && (
          <Button
            disabled={mounts.length >= MOST}
            onClick={() => add(unused ?? names[0] ?? "")}
            icon={<Plus aria-hidden className="size-4" />}
          >
            Mount a volume
          </Button>
        )}
        <Button
          tone={volumes.length > 0 ? "ghost" : "plain"}
          why={whyNot("create volumes")}
          onClick={() => setCreating(true)}
          icon={<Plus aria-hidden className="size-4" />}
        >
          New volume
        </Button>
      </div>
      {creating && <NewVolume taken={names} onClose={() => setCreating(false)} onCreated={({ name }) => add(name)} />}
    </div>
  );
}
