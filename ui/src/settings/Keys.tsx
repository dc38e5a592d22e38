import { useState, type FormEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Copy, KeyRound, Plus } from "lucide-react";
import { toast } from "sonner";
import { useAgentNames, useAgents } from "../api/agents";
import { api, take, type Schemas } from "../api/client";
import { may } from "../api/session";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { copyText, CopyAs, curl } from "../ui/CopyAs";
import { Confirm, Dialog } from "../ui/Dialog";
import { Empty, ErrorBox, Loaded } from "../ui/feedback";
import { SelectField, TextField } from "../ui/fields";
import { moment } from "../ui/format";
import { Card, Cell, Table } from "../ui/layout";
import { Ago } from "../ui/time";
import { SettingsFrame } from "./SettingsFrame";

type Key = Schemas["Key"];

/** The one time a key is shown. */
function Shown({ secret, onClose }: { secret: string; onClose: () => void }) {
  return (
    <Dialog
      open
      onClose={onClose}
      title="Copy the key now"
      description="It is not shown again: the server keeps only its digest."
    >
      <div className="flex items-center gap-2 rounded-md bg-raised p-3">
        <code className="min-w-0 flex-1 font-mono text-sm break-all">{secret}</code>
        <Button
          aria-label="Copy the key"
          onClick={() => void copyText(secret, "the key")}
          icon={<Copy aria-hidden className="size-4" />}
        />
      </div>
      <div className="mt-4 flex justify-end">
        <Button tone="primary" onClick={onClose}>
          Done
        </Button>
      </div>
    </Dialog>
  );
}

function NewKey({ onClose, onMade }: { onClose: () => void; onMade: (secret: string) => void }) {
  const queries = useQueryClient();
  const agents = useAgents();
  const [name, setName] = useState("");
  const [role, setRole] = useState("write");
  const [kind, setKind] = useState("service");
  const [agent, setAgent] = useState("");
  const [life, setLife] = useState("2592000");
  const body = {
    name,
    role,
    ...(agent === "" ? { kind } : { agent_id: agent }),
    ...(life === "" ? {} : { expires_in_s: Number(life) }),
  };
  const make = useMutation({
    mutationFn: () => take(api.POST("/api/v1/keys", { body })),
    onSuccess: (made) => {
      void queries.invalidateQueries({ queryKey: ["keys"] });
      onMade(made.key);
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate();
  };
  return (
    <Dialog open onClose={onClose} title="New key">
      <form onSubmit={submit} className="space-y-4">
        <TextField
          label="Name"
          required
          autoFocus
          value={name}
          onChange={(event) => setName(event.target.value)}
          hint="Shown in lists and in the audit log."
        />
        <SelectField label="Role" value={role} onChange={(event) => setRole(event.target.value)}>
          <option value="read">Read: look at the project</option>
          <option value="write">Write: also create and use sandboxes and tasks</option>
          <option value="admin" disabled={agent !== ""}>
            Admin: also change the project
          </option>
        </SelectField>
        <SelectField
          label="Used by"
          value={kind}
          disabled={agent !== ""}
          onChange={(event) => setKind(event.target.value)}
          hint="Only people can approve pull requests."
        >
          <option value="service">A service</option>
          <option value="person">A person</option>
        </SelectField>
        <SelectField
          label="Agent"
          value={agent}
          onChange={(event) => setAgent(event.target.value)}
          hint="An agent's key reaches only the sandboxes of that agent."
        >
          <option value="">None</option>
          {agents.data?.items.map((one) => (
            <option key={one.id} value={one.id}>
              {one.name}
            </option>
          ))}
        </SelectField>
        <SelectField label="Expires after" value={life} onChange={(event) => setLife(event.target.value)}>
          <option value="86400">1 day</option>
          <option value="2592000">30 days</option>
          <option value="31536000">1 year</option>
          <option value="">Never</option>
        </SelectField>
        {make.error !== null && <ErrorBox error={make.error} />}
        <div className="flex justify-end gap-2">
          <CopyAs recipe={{ curl: curl("POST", "/api/v1/keys", body) }} />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={make.isPending}>
            Create
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

function isOver(key: Key): boolean {
  return Boolean(key.revoked_at) || (key.expires_at ? Date.parse(key.expires_at) < Date.now() : false);
}

export function Keys() {
  const queries = useQueryClient();
  const query = useQuery({ queryKey: ["keys"], queryFn: () => take(api.GET("/api/v1/keys")), enabled: may("admin") });
  const names = useAgentNames();
  const [making, setMaking] = useState(false);
  const [secret, setSecret] = useState<string>();
  const [revoking, setRevoking] = useState<Key>();
  const [rotating, setRotating] = useState<Key>();
  const [old, setOld] = useState(false);
  const fresh = () => queries.invalidateQueries({ queryKey: ["keys"] });
  return (
    <SettingsFrame
      actions={
        <Button
          tone="primary"
          disabled={!may("admin")}
          onClick={() => setMaking(true)}
          icon={<Plus aria-hidden className="size-4" />}
        >
          New key
        </Button>
      }
    >
      <Card
        title="Keys"
        actions={
          <label className="flex items-center gap-2 text-dim">
            <input
              type="checkbox"
              checked={old}
              onChange={(event) => setOld(event.target.checked)}
              className="accent-(--accent)"
            />
            Show expired and revoked
          </label>
        }
      >
        <Loaded query={query}>
          {({ items }) => {
            const shown = items.filter((key) => old || !isOver(key));
            if (shown.length === 0) return <Empty icon={<KeyRound aria-hidden className="size-6" />} title="No keys" />;
            return (
              <Table
                label="Keys"
                head={[
                  "Name",
                  { wide: "Prefix" },
                  "Role",
                  { wide: "Agent" },
                  { wide: "Last used" },
                  { wide: "Expires" },
                  "",
                ]}
              >
                {shown.map((key) => (
                  <tr key={key.id}>
                    <Cell className="font-medium">{key.name}</Cell>
                    <Cell wide className="font-mono text-xs">
                      {key.prefix}…
                    </Cell>
                    <Cell>
                      <Badge tone={key.role === "admin" ? "warn" : "dim"}>{key.role}</Badge>
                    </Cell>
                    <Cell wide className="text-dim">
                      {key.agent_id ? (names.get(key.agent_id) ?? key.agent_id) : "–"}
                    </Cell>
                    <Cell wide className="whitespace-nowrap text-dim">
                      {key.last_used_at ? <Ago at={key.last_used_at} /> : "never"}
                    </Cell>
                    <Cell wide className="whitespace-nowrap text-dim">
                      {key.revoked_at ? "revoked" : key.expires_at ? moment(key.expires_at) : "never"}
                    </Cell>
                    <Cell>
                      {!isOver(key) && (
                        <div className="flex flex-wrap justify-end gap-2">
                          <Button onClick={() => setRotating(key)}>Rotate</Button>
                          <Button tone="quiet-danger" onClick={() => setRevoking(key)}>
                            Revoke
                          </Button>
                        </div>
                      )}
                    </Cell>
                  </tr>
                ))}
              </Table>
            );
          }}
        </Loaded>
      </Card>
      {making && (
        <NewKey
          onClose={() => setMaking(false)}
          onMade={(made) => {
            setMaking(false);
            setSecret(made);
          }}
        />
      )}
      {secret !== undefined && <Shown secret={secret} onClose={() => setSecret(undefined)} />}
      <Confirm
        open={revoking !== undefined}
        onClose={() => setRevoking(undefined)}
        title={`Revoke ${revoking?.name ?? ""}?`}
        action="Revoke"
        danger
        onConfirm={async () => {
          await take(api.DELETE("/api/v1/keys/{key}", { params: { path: { key: revoking?.id ?? "" } } }));
          await fresh();
          toast.success("Revoked");
        }}
      >
        Requests with this key are refused from now on. This cannot be undone.
      </Confirm>
      <Confirm
        open={rotating !== undefined}
        onClose={() => setRotating(undefined)}
        title={`Rotate ${rotating?.name ?? ""}?`}
        action="Rotate"
        onConfirm={async () => {
          const path = { key: rotating?.id ?? "" };
          const made = await take(api.POST("/api/v1/keys/{key}/rotate", { params: { path }, body: null }));
          await fresh();
          setSecret(made.key);
        }}
      >
        Creates a new key with the same rights. The old key works for one more day.
      </Confirm>
    </SettingsFrame>
  );
}
