import { useState, type FormEvent } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Bot } from "lucide-react";
import { useAgents } from "../api/agents";
import { api, take, type Schemas } from "../api/client";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Confirm } from "../ui/Dialog";
import { Empty, ErrorBox, Loaded } from "../ui/feedback";
import { TextField } from "../ui/fields";
import { moment } from "../ui/format";
import { Card, Cell, Table } from "../ui/layout";
import { SettingsFrame } from "./SettingsFrame";

type Agent = Schemas["Agent"];

export function Agents() {
  const queries = useQueryClient();
  const query = useAgents();
  const [name, setName] = useState("");
  const [removing, setRemoving] = useState<Agent>();
  const fresh = () => queries.invalidateQueries({ queryKey: ["agents"] });
  const make = useMutation({
    mutationFn: () => take(api.POST("/api/v1/agents", { body: { name } })),
    onSuccess: () => {
      setName("");
      void fresh();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate();
  };
  return (
    <SettingsFrame admin={false}>
      <Card title="New agent" actions={<CopyAs recipe={{ curl: curl("POST", "/api/v1/agents", { name: name || "reviewer" }) }} />}>
        <form onSubmit={submit} className="space-y-3 p-4">
          <div className="flex max-w-lg items-end gap-2">
            <div className="flex-1">
              <TextField label="Name" required value={name} onChange={(event) => setName(event.target.value)} disabled={!may("admin")} hint="Give it a key of its own under Keys." />
            </div>
            <Button type="submit" tone="primary" className="mb-5" busy={make.isPending} disabled={!may("admin")}>
              Add
            </Button>
          </div>
          {make.error !== null && <ErrorBox error={make.error} />}
        </form>
      </Card>
      <Card title="Agents">
        <Loaded query={query}>
          {({ items }) =>
            items.length === 0 ? (
              <Empty icon={<Bot aria-hidden className="size-6" />} title="No agents yet">
                An agent owns sandboxes; its key touches no others.
              </Empty>
            ) : (
              <Table label="Agents" head={["Name", "Id", "Made", ""]}>
                {items.map((agent) => (
                  <tr key={agent.id}>
                    <Cell className="font-medium">{agent.name}</Cell>
                    <Cell className="font-mono text-xs">{agent.id}</Cell>
                    <Cell className="whitespace-nowrap text-dim">{moment(agent.created_at)}</Cell>
                    <Cell className="text-right">
                      <Button tone="danger" disabled={!may("admin")} onClick={() => setRemoving(agent)}>
                        Remove
                      </Button>
                    </Cell>
                  </tr>
                ))}
              </Table>
            )
          }
        </Loaded>
      </Card>
      <Confirm
        open={removing !== undefined}
        onClose={() => setRemoving(undefined)}
        title={`Remove ${removing?.name ?? ""}?`}
        action="Remove it"
        danger
        onConfirm={async () => {
          await take(api.DELETE("/api/v1/agents/{agent}", { params: { path: { agent: removing?.id ?? "" } } }));
          await fresh();
        }}
      >
        Its keys are refused from then on.
      </Confirm>
    </SettingsFrame>
  );
}
