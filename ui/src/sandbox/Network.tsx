import { useState, type FormEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { toast } from "sonner";
import { api, take, type Schemas } from "../api/client";
import { useSandbox } from "../api/sandboxes";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Empty, ErrorBox, Loaded } from "../ui/feedback";
import { SelectField, TextArea } from "../ui/fields";
import { bytes, moment, plainText } from "../ui/format";
import { Card, Cell, Facts, Table } from "../ui/layout";

type Reach = Schemas["Reach"];
type Policy = Schemas["Policy"];

const lines = (text: string) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");

function Editor({ id, policy, live }: { id: string; policy: Policy; live: boolean }) {
  const queries = useQueryClient();
  const [base, setBase] = useState(policy.base);
  const [allow, setAllow] = useState((policy.allow ?? []).join("\n"));
  const [deny, setDeny] = useState((policy.deny ?? []).join("\n"));
  const wanted: Policy = { ...policy, base, allow: lines(allow), deny: lines(deny) };
  const save = useMutation({
    mutationFn: () => take(api.PUT("/api/v1/sandboxes/{id}/network", { params: { path: { id } }, body: wanted })),
    onSuccess: (reach) => {
      queries.setQueryData(["network", id], reach);
      toast.success("Saved; open connections follow it too");
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    save.mutate();
  };
  const allowed = may("write") && live;
  return (
    <form onSubmit={submit} className="space-y-4 p-4">
      <SelectField label="Base" value={base} disabled={!allowed} onChange={(event) => setBase(event.target.value)}>
        <option value="web">the web (ports 80 and 443)</option>
        <option value="public">everything public</option>
        <option value="none">nothing</option>
        {!["web", "public", "none"].includes(policy.base) && <option value={policy.base}>{policy.base}</option>}
      </SelectField>
      <div className="grid gap-4 sm:grid-cols-2">
        <TextArea
          label="Also allow"
          value={allow}
          disabled={!allowed}
          onChange={(event) => setAllow(event.target.value)}
          placeholder={"*.example.com\n10.0.0.7:5432"}
          hint="Names, addresses or networks, one per line."
        />
        <TextArea
          label="Deny"
          value={deny}
          disabled={!allowed}
          onChange={(event) => setDeny(event.target.value)}
          placeholder="ads.example.com"
          hint="Takes precedence over the base."
        />
      </div>
      {(policy.headers?.length ?? 0) > 0 && (
        <p className="text-dim">{policy.headers?.length} rules put headers into requests; they stay as they are.</p>
      )}
      {save.error !== null && <ErrorBox error={save.error} />}
      <div className="flex items-center justify-end gap-2">
        <CopyAs recipe={{ curl: curl("PUT", `/api/v1/sandboxes/${id}/network`, wanted) }} />
        <Button type="submit" tone="primary" busy={save.isPending} disabled={!allowed}>
          Save
        </Button>
      </div>
    </form>
  );
}

function Refused({ reach }: { reach: Reach }) {
  if (reach.refusals.length === 0) return <Empty title="No refused connections" />;
  return (
    <>
      <Table label="Refused connections, newest first" head={["When", "To", "Kind", "By"]}>
        {[...reach.refusals].reverse().map((refusal) => (
          <tr key={refusal.sequence}>
            <Cell className="whitespace-nowrap text-dim">{moment(new Date(refusal.at_ms).toISOString())}</Cell>
            <Cell className="font-mono">
              {plainText(refusal.name ?? refusal.address ?? "?")}
              {refusal.port ? `:${refusal.port}` : ""}
            </Cell>
            <Cell>{plainText(refusal.kind)}</Cell>
            <Cell className="font-mono text-dim">{plainText(refusal.rule)}</Cell>
          </tr>
        ))}
      </Table>
      {reach.forgotten > 0 && (
        <p className="border-t border-line px-4 py-2 text-dim">{reach.forgotten} older ones are in the events.</p>
      )}
    </>
  );
}

export function Network() {
  const { id } = useParams({ from: "/shell/sandboxes/$id" });
  const sandbox = useSandbox(id).data;
  const live = sandbox?.state === "running" || sandbox?.state === "paused";
  const query = useQuery({
    queryKey: ["network", id],
    queryFn: () => take(api.GET("/api/v1/sandboxes/{id}/network", { params: { path: { id } } })),
    enabled: live,
    refetchInterval: sandbox?.state === "running" ? 5000 : false,
  });
  if (sandbox === undefined) return null;
  if (!live) return <Empty title="This sandbox has ended">Refused connections are under History.</Empty>;
  return (
    <Loaded query={query}>
      {(reach) => (
        <div className="mx-auto grid max-w-[1400px] gap-4 p-3 sm:p-5 lg:grid-cols-2">
          <Card title="Policy">
            <Editor id={id} policy={reach.policy} live={live} />
          </Card>
          <Card title="Traffic">
            <Facts
              facts={[
                ["Sent", bytes(reach.traffic.sent_bytes)],
                ["Received", bytes(reach.traffic.received_bytes)],
                ["Open connections", reach.traffic.open],
                ["Connections so far", reach.traffic.opened],
                ["Failed", reach.traffic.failed],
                ["Refused", reach.traffic.refused],
                ["DNS queries", reach.traffic.questions],
              ]}
            />
          </Card>
          <Card title={`Refused (${reach.total})`} className="lg:col-span-2">
            <Refused reach={reach} />
          </Card>
        </div>
      )}
    </Loaded>
  );
}
