import { useState, type FormEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Lock } from "lucide-react";
import { toast } from "sonner";
import { api, take, type Schemas } from "../api/client";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Confirm } from "../ui/Dialog";
import { Empty, ErrorBox, Loaded } from "../ui/feedback";
import { TextArea, TextField } from "../ui/fields";
import { moment } from "../ui/format";
import { Card, Cell, Table } from "../ui/layout";
import { SettingsFrame } from "./SettingsFrame";

type Secret = Schemas["Secret"];

export function Secrets() {
  const queries = useQueryClient();
  const query = useQuery({ queryKey: ["secrets"], queryFn: () => take(api.GET("/api/v1/secrets")), enabled: may("admin") });
  const [name, setName] = useState("");
  const [value, setValue] = useState("");
  const [hosts, setHosts] = useState("");
  const [removing, setRemoving] = useState<Secret>();
  const fresh = () => queries.invalidateQueries({ queryKey: ["secrets"] });
  const list = hosts.split(/[\s,]+/).filter(Boolean);
  const put = useMutation({
    mutationFn: () =>
      take(
        api.PUT("/api/v1/secrets/{secret}", {
          params: { path: { secret: name } },
          body: { value, ...(list.length > 0 ? { hosts: list } : {}) },
        }),
      ),
    onSuccess: () => {
      setName("");
      setValue("");
      setHosts("");
      toast.success("Stored; it is not shown again");
      void fresh();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    put.mutate();
  };
  return (
    <SettingsFrame>
      <Card title="Store a secret" actions={<CopyAs recipe={{ curl: curl("PUT", `/api/v1/secrets/${name || "NAME"}`, { value: "…" }) }} />}>
        <form onSubmit={submit} className="grid gap-4 p-4 sm:grid-cols-2">
          <TextField label="Name" required value={name} onChange={(event) => setName(event.target.value)} placeholder="GITHUB_TOKEN" hint="One that exists gets a new value." />
          <TextField label="Only for these hosts" value={hosts} onChange={(event) => setHosts(event.target.value)} placeholder="api.github.com" hint="Where it may be put into headers; separate by spaces." />
          <div className="sm:col-span-2">
            <TextArea label="Value" required value={value} onChange={(event) => setValue(event.target.value)} autoComplete="off" hint="Encrypted at rest, replaced by [redacted] in logs, never shown again." />
          </div>
          {put.error !== null && <ErrorBox error={put.error} className="sm:col-span-2" />}
          <div className="flex justify-end sm:col-span-2">
            <Button type="submit" tone="primary" busy={put.isPending}>
              Store
            </Button>
          </div>
        </form>
      </Card>
      <Card title="Secrets">
        <Loaded query={query}>
          {({ items }) =>
            items.length === 0 ? (
              <Empty icon={<Lock aria-hidden className="size-6" />} title="No secrets yet" />
            ) : (
              <Table label="Secrets" head={["Name", "Hosts", "Version", "Changed", ""]}>
                {items.map((secret) => (
                  <tr key={secret.name}>
                    <Cell className="font-mono">{secret.name}</Cell>
                    <Cell className="text-dim">{secret.hosts?.join(", ") || "any"}</Cell>
                    <Cell>{secret.version}</Cell>
                    <Cell className="whitespace-nowrap text-dim">{moment(secret.updated_at)}</Cell>
                    <Cell>
                      <div className="flex justify-end gap-2">
                        <Button onClick={() => setName(secret.name)}>New value</Button>
                        <Button tone="danger" onClick={() => setRemoving(secret)}>
                          Delete
                        </Button>
                      </div>
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
        title={`Delete ${removing?.name ?? ""}?`}
        action="Delete it"
        danger
        onConfirm={async () => {
          await take(api.DELETE("/api/v1/secrets/{secret}", { params: { path: { secret: removing?.name ?? "" } } }));
          await fresh();
        }}
      >
        Sandboxes that name it cannot be made any more.
      </Confirm>
    </SettingsFrame>
  );
}
