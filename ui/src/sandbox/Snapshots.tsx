// Snapshots of a sandbox, forks of it, and the tree of all that came from the same beginning.
import { useState, type FormEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { Camera, GitFork } from "lucide-react";
import { toast } from "sonner";
import { api, take, type Schemas } from "../api/client";
import { useSandbox } from "../api/sandboxes";
import { may } from "../api/session";
import { Badge, StateBadge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { CopyAs, curl } from "../ui/CopyAs";
import { Confirm, Dialog } from "../ui/Dialog";
import { Empty, ErrorBox, Loaded, toastError } from "../ui/feedback";
import { CheckField, TextField } from "../ui/fields";
import { bytes, plainText } from "../ui/format";
import { Card, Cell, Table } from "../ui/layout";
import { Ago } from "../ui/time";

type Snapshot = Schemas["Snapshot"];
type Fork = Schemas["Fork"];

function useFresh() {
  const queries = useQueryClient();
  return () =>
    Promise.all(
      ["snapshots", "lineage", "sandboxes", "sandbox", "history"].map((name) =>
        queries.invalidateQueries({ queryKey: [name] }),
      ),
    );
}

function NewSnapshot({ id, onClose }: { id: string; onClose: () => void }) {
  const fresh = useFresh();
  const [name, setName] = useState("");
  const body = name === "" ? {} : { name };
  const make = useMutation({
    mutationFn: () => take(api.POST("/api/v1/sandboxes/{id}/snapshots", { params: { path: { id } }, body })),
    onSuccess: async (made) => {
      await fresh();
      toast.success(`Snapshot created; the sandbox was paused for ${(made.paused_us / 1000).toFixed(1)} ms`);
      onClose();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate();
  };
  return (
    <Dialog open onClose={onClose} title="New snapshot" description="The files as they are now. The sandbox goes on.">
      <form onSubmit={submit} className="space-y-4">
        <TextField
          label="Name"
          autoFocus
          value={name}
          onChange={(event) => setName(event.target.value)}
          hint="Optional. Lower-case letters, digits and dashes."
        />
        {make.error !== null && <ErrorBox error={make.error} />}
        <div className="flex justify-end gap-2">
          <CopyAs
            recipe={{
              python: `Sandbox.connect("${id}").create_snapshot()`,
              curl: curl("POST", `/api/v1/sandboxes/${id}/snapshots`, body),
            }}
          />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={make.isPending}>
            Create
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

/** What became of each fork: some may have been refused while others were made. */
function Outcome({ fork }: { fork: Fork }) {
  return (
    <ul className="divide-y divide-line rounded-md border border-line" aria-label="Forks">
      {fork.children.map((child, at) => (
        <li key={child.sandbox?.id ?? at} className="flex items-center gap-3 px-3 py-2">
          {child.sandbox ? (
            <>
              <StateBadge state={child.sandbox.state} />
              <Link to="/sandboxes/$id" params={{ id: child.sandbox.id }} className="font-mono text-accent underline">
                {child.sandbox.id}
              </Link>
            </>
          ) : (
            <>
              <Badge tone="bad">refused</Badge>
              <span>
                {child.error?.message}
                {child.error?.hint && ` (${child.error.hint})`}
              </span>
            </>
          )}
        </li>
      ))}
    </ul>
  );
}

function NewForks({ id, onClose }: { id: string; onClose: () => void }) {
  const fresh = useFresh();
  const [count, setCount] = useState("2");
  const [secrets, setSecrets] = useState(false);
  const body = { count: Number(count), ...(secrets ? { inherit_secrets: true } : {}) };
  const make = useMutation({
    mutationFn: () => take(api.POST("/api/v1/sandboxes/{id}/fork", { params: { path: { id } }, body })),
    onSuccess: fresh,
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate();
  };
  return (
    <Dialog
      open
      onClose={onClose}
      title="Fork this sandbox"
      description="New sandboxes that begin as this one is now. This one keeps everything."
    >
      <form onSubmit={submit} className="space-y-4">
        <TextField
          label="How many"
          type="number"
          min="1"
          max="20"
          required
          autoFocus
          value={count}
          onChange={(event) => setCount(event.target.value)}
        />
        <CheckField
          label="Copy its secrets"
          checked={secrets}
          onChange={(event) => setSecrets(event.target.checked)}
          hint="Without this the forks have no secrets."
        />
        {make.error !== null && <ErrorBox error={make.error} />}
        {make.data !== undefined && <Outcome fork={make.data} />}
        {make.data?.note && <p className="text-dim">{make.data.note}</p>}
        <div className="flex justify-end gap-2">
          <CopyAs recipe={{ curl: curl("POST", `/api/v1/sandboxes/${id}/fork`, body) }} />
          <Button onClick={onClose}>{make.data === undefined ? "Cancel" : "Close"}</Button>
          <Button type="submit" tone="primary" busy={make.isPending}>
            Fork
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

function Tree({ id }: { id: string }) {
  const query = useQuery({
    queryKey: ["lineage", id],
    queryFn: () => take(api.GET("/api/v1/sandboxes/{id}/lineage", { params: { path: { id } } })),
  });
  return (
    <Loaded query={query}>
      {({ nodes, truncated }) => {
        if (nodes.length < 2)
          return <Empty title="No relatives">It was created from a template and has not been forked.</Empty>;
        return (
          <ul className="p-2" aria-label="Family of sandboxes">
            {nodes.map((node) => (
              <li
                key={node.id}
                className={classes(
                  "flex flex-wrap items-center gap-3 rounded-md px-3 py-1.5",
                  node.id === id && "bg-accent-soft",
                )}
                style={{ marginLeft: Math.min(12, node.depth) * 20 }}
              >
                {node.depth > 0 && <GitFork aria-hidden className="size-4 text-dim" />}
                <Link
                  to="/sandboxes/$id/snapshots"
                  params={{ id: node.id }}
                  aria-current={node.id === id ? "true" : undefined}
                  className="font-mono text-accent underline"
                >
                  {node.id}
                </Link>
                <StateBadge state={node.state} />
                <span className="sr-only">
                  level {node.depth + 1}, {node.origin}
                </span>
              </li>
            ))}
            {truncated && <li className="px-3 py-1.5 text-dim">Not all are shown.</li>}
          </ul>
        );
      }}
    </Loaded>
  );
}

export function Snapshots() {
  const { id } = useParams({ from: "/shell/sandboxes/$id" });
  const sandbox = useSandbox(id).data;
  const navigate = useNavigate();
  const fresh = useFresh();
  const query = useQuery({
    queryKey: ["snapshots", id],
    queryFn: () => take(api.GET("/api/v1/snapshots", { params: { query: { sandbox_id: id, limit: 200 } } })),
  });
  const [making, setMaking] = useState(false);
  const [forking, setForking] = useState(false);
  const [removing, setRemoving] = useState<Snapshot>();
  const [rolling, setRolling] = useState<Snapshot>();
  const start = useMutation({
    mutationFn: (snapshot: Snapshot) =>
      take(
        api.POST("/api/v1/sandboxes", {
          body: { template: snapshot.id, metadata: { name: `from ${snapshot.name ?? snapshot.id}` } },
        }),
      ),
    onSuccess: (made) => void navigate({ to: "/sandboxes/$id", params: { id: made.id } }),
    onError: toastError,
  });
  if (sandbox === undefined) return null;
  const running = sandbox.state === "running";
  const live = running || sandbox.state === "paused";
  return (
    <div className="mx-auto grid max-w-[1400px] gap-4 p-3 sm:p-5">
      <Card
        title="Snapshots"
        actions={
          <div className="flex flex-wrap gap-2">
            <Button
              disabled={!running || !may("write")}
              onClick={() => setMaking(true)}
              icon={<Camera aria-hidden className="size-4" />}
            >
              Snapshot
            </Button>
            <Button
              disabled={!running || !may("write")}
              onClick={() => setForking(true)}
              icon={<GitFork aria-hidden className="size-4" />}
            >
              Fork
            </Button>
          </div>
        }
      >
        <Loaded query={query}>
          {({ items }) =>
            items.length === 0 ? (
              <Empty icon={<Camera aria-hidden className="size-6" />} title="No snapshots yet">
                A snapshot costs no space until something changes, and sandboxes start from it at once.
              </Empty>
            ) : (
              <Table label="Snapshots" head={["Snapshot", "Created", "Files", "Memory", ""]}>
                {items.map((snapshot) => (
                  <tr key={snapshot.id}>
                    <Cell>
                      <span className="block font-medium">
                        {plainText(snapshot.full_name ?? snapshot.name ?? "unnamed")}
                      </span>
                      <span className="font-mono text-xs text-dim">{snapshot.id}</span>
                    </Cell>
                    <Cell className="whitespace-nowrap text-dim">
                      <Ago at={snapshot.created_at} />
                    </Cell>
                    <Cell className="whitespace-nowrap text-dim">{bytes(snapshot.files_bytes)}</Cell>
                    <Cell className="whitespace-nowrap text-dim">
                      {snapshot.memory ? bytes(snapshot.memory_bytes) : "files only"}
                    </Cell>
                    <Cell>
                      <div className="flex justify-end gap-2">
                        <CopyAs
                          recipe={{
                            python: `Sandbox.create("${snapshot.id}")`,
                            curl: curl("POST", "/api/v1/sandboxes", { template: snapshot.id }),
                          }}
                        />
                        <Button
                          disabled={!may("write")}
                          busy={start.isPending && start.variables?.id === snapshot.id}
                          onClick={() => start.mutate(snapshot)}
                        >
                          Create sandbox
                        </Button>
                        {live && (
                          <Button disabled={!may("write")} onClick={() => setRolling(snapshot)}>
                            Roll back
                          </Button>
                        )}
                        <Button tone="quiet-danger" disabled={!may("write")} onClick={() => setRemoving(snapshot)}>
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
      <Card title="Lineage" actions={<CopyAs recipe={{ curl: curl("GET", `/api/v1/sandboxes/${id}/lineage`) }} />}>
        <Tree id={id} />
      </Card>
      {making && <NewSnapshot id={id} onClose={() => setMaking(false)} />}
      {forking && <NewForks id={id} onClose={() => setForking(false)} />}
      <Confirm
        open={removing !== undefined}
        onClose={() => setRemoving(undefined)}
        title="Delete this snapshot?"
        action="Delete"
        danger
        onConfirm={async () => {
          await take(
            api.DELETE("/api/v1/snapshots/{snapshot}", { params: { path: { snapshot: removing?.id ?? "" } } }),
          );
          await fresh();
        }}
      >
        Sandboxes created from it keep running. This cannot be undone.
      </Confirm>
      <Confirm
        open={rolling !== undefined}
        onClose={() => setRolling(undefined)}
        title="Roll this sandbox back?"
        action="Roll back"
        danger
        onConfirm={async () => {
          const body = { snapshot_id: rolling?.id ?? "" };
          await take(api.POST("/api/v1/sandboxes/{id}/rollback", { params: { path: { id } }, body }));
          await fresh();
          toast.success("Rolled back");
        }}
      >
        Its processes end, and what it wrote since the snapshot is lost.
      </Confirm>
    </div>
  );
}
