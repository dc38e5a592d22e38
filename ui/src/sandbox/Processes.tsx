import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { api, take, type Schemas } from "../api/client";
import { useSandbox } from "../api/sandboxes";
import { isPlumbing } from "../work/executions";
import { may } from "../api/session";
import { Badge, StateBadge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Confirm } from "../ui/Dialog";
import { Empty, Loaded, toastError } from "../ui/feedback";
import { bytes, duration, plainText } from "../ui/format";
import { Card, Cell, Table } from "../ui/layout";
import { Ago } from "../ui/time";
import { Awake } from "./Asleep";
import { ExecutionOutput } from "./ExecutionOutput";
import { RunCommand } from "./RunCommand";

type Process = Schemas["Process"];
type Execution = Schemas["Execution"];

function commandLine(process: Process): string {
  return plainText([process.program, ...process.arguments].join(" "));
}

function Running({ id }: { id: string }) {
  const queries = useQueryClient();
  const query = useQuery({
    queryKey: ["processes", id],
    queryFn: () =>
      take(api.GET("/api/v1/sandboxes/{id}/processes", { params: { path: { id }, query: { watch: true } } })),
    refetchInterval: 10_000,
  });
  const [killing, setKilling] = useState<Process>();
  const stop = useMutation({
    mutationFn: (pid: number) =>
      take(
        api.DELETE("/api/v1/sandboxes/{id}/processes/{pid}", {
          params: { path: { id, pid }, query: { signal: "TERM" } },
        }),
      ),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["processes", id] }),
    onError: toastError,
  });
  return (
    <Loaded query={query}>
      {({ items }) =>
        items.length === 0 ? (
          <Empty title="No processes">Commands started through the API, an SDK or a terminal are listed here.</Empty>
        ) : (
          <>
            <Table label="Running processes" head={["Pid", "Command", "Directory", "Tag", ""]}>
              {items.map((process) => (
                <tr key={process.pid}>
                  <Cell className="font-mono">{process.pid}</Cell>
                  <Cell className="max-w-md truncate font-mono">{commandLine(process)}</Cell>
                  <Cell className="font-mono text-dim">{process.cwd ?? "–"}</Cell>
                  <Cell className="text-dim">{plainText(process.tag ?? "") || "–"}</Cell>
                  <Cell>
                    <div className="flex justify-end gap-2">
                      <Button disabled={!may("write")} onClick={() => stop.mutate(process.pid)}>
                        Stop
                      </Button>
                      <Button tone="quiet-danger" disabled={!may("write")} onClick={() => setKilling(process)}>
                        Kill
                      </Button>
                    </div>
                  </Cell>
                </tr>
              ))}
            </Table>
            <Confirm
              open={killing !== undefined}
              onClose={() => setKilling(undefined)}
              title={`Kill process ${killing?.pid ?? ""}?`}
              action="Kill"
              danger
              onConfirm={async () => {
                const path = { id, pid: killing?.pid ?? 0 };
                await take(api.DELETE("/api/v1/sandboxes/{id}/processes/{pid}", { params: { path } }));
                await queries.invalidateQueries({ queryKey: ["processes", id] });
              }}
            >
              <code className="font-mono break-all">{killing && commandLine(killing)}</code> and its group get no chance
              to save anything.
            </Confirm>
          </>
        )
      }
    </Loaded>
  );
}

function outcome(execution: Execution) {
  if (execution.state !== "exited") return <StateBadge state={execution.state} />;
  if (execution.exit_code === 0) return <Badge tone="ok">exit 0</Badge>;
  const text =
    execution.exit_code === null || execution.exit_code === undefined
      ? (execution.status ?? "ended")
      : `exit ${execution.exit_code}`;
  return <Badge tone="bad">{text}</Badge>;
}

export function Executions({ id, onOpen }: { id?: string; onOpen: (execution: Execution) => void }) {
  const query = useQuery({
    queryKey: ["executions", id ?? "newest"],
    queryFn: () =>
      id === undefined
        ? take(api.GET("/api/v1/executions", { params: { query: { limit: 200 } } }))
        : take(api.GET("/api/v1/sandboxes/{id}/executions", { params: { path: { id }, query: { limit: 100 } } })),
  });
  return (
    <Loaded query={query}>
      {({ items: all }) => {
        // git around an agent's work is the server's own; in a sandbox's own list it may be what people look for.
        const items = id === undefined ? all.filter((one) => !isPlumbing(one)) : all;
        return items.length === 0 ? (
          <Empty title="No commands yet" />
        ) : (
          <Table label="Executions" head={["Command", "Outcome", "Started", "Duration", "Output", ""]}>
            {items.map((execution) => (
              <tr key={execution.id}>
                <Cell className="max-w-md">
                  <div className="truncate font-mono">{plainText(execution.command)}</div>
                  {id === undefined && (
                    <Link
                      to="/sandboxes/$id"
                      params={{ id: execution.sandbox }}
                      className="font-mono text-xs text-accent underline"
                    >
                      {execution.sandbox}
                    </Link>
                  )}
                </Cell>
                <Cell>{outcome(execution)}</Cell>
                <Cell className="whitespace-nowrap text-dim">
                  <Ago at={execution.started_at} />
                </Cell>
                <Cell className="whitespace-nowrap text-dim">
                  {execution.ended_at
                    ? duration(Date.parse(execution.ended_at) - Date.parse(execution.started_at))
                    : "–"}
                </Cell>
                <Cell className="whitespace-nowrap text-dim">
                  {bytes(execution.output_bytes_total)}
                  {execution.truncated && " (cut)"}
                </Cell>
                <Cell className="text-right">
                  <Button onClick={() => onOpen(execution)}>Output</Button>
                </Cell>
              </tr>
            ))}
          </Table>
        );
      }}
    </Loaded>
  );
}

export function Processes() {
  const { id } = useParams({ from: "/shell/sandboxes/$id" });
  const sandbox = useSandbox(id).data;
  const [open, setOpen] = useState<Execution>();
  if (sandbox === undefined) return null;
  return (
    <div className="mx-auto grid max-w-[1400px] gap-4 p-3 sm:p-5">
      <Card
        title="Running"
        actions={
          <CopyAs
            recipe={{
              python: `Sandbox.connect("${id}").commands.list()`,
              curl: curl("GET", `/api/v1/sandboxes/${id}/processes`),
            }}
          />
        }
      >
        <Awake sandbox={sandbox} what="Its processes are frozen with it.">
          <Running id={id} />
        </Awake>
      </Card>
      {sandbox.state === "running" && may("write") && <RunCommand id={id} />}
      <Card
        title="Finished commands"
        actions={<CopyAs recipe={{ curl: curl("GET", `/api/v1/sandboxes/${id}/executions`) }} />}
      >
        <Executions id={id} onOpen={setOpen} />
      </Card>
      {open !== undefined && <ExecutionOutput execution={open} onClose={() => setOpen(undefined)} />}
    </div>
  );
}
