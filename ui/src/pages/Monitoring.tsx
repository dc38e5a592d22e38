import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { CircleAlert, CircleCheck, LoaderCircle } from "lucide-react";
import { useAgentNames } from "../api/agents";
import { api, raw, take } from "../api/client";
import { useSandboxes } from "../api/sandboxes";
import { useSession } from "../api/session";
import { Badge } from "../ui/Badge";
import { CopyAs, curl } from "../ui/CopyAs";
import { Empty, ErrorBox, Loaded } from "../ui/feedback";
import { bytes, duration, mebibytes, money, percentile, plainText, span } from "../ui/format";
import { Card, Cell, Facts, Meter, Page, Table } from "../ui/layout";
import { Ago } from "../ui/time";
import { isPlumbing } from "../work/executions";
import { alertsOf } from "./alerts";
import { failedSince, successByAgent } from "./costs";
import { Spending } from "./Spending";
import { gauge, parseMetrics, quantile, total, type Metrics } from "./metrics";

const TONES = { critical: "bad", warning: "warn", info: "info" } as const;

function Figure({ name, value, tone }: { name: string; value: string | number; tone?: "bad" }) {
  return (
    <div className="rounded-lg border border-line bg-surface p-4">
      <div className="text-xs text-dim">{name}</div>
      <div className={`mt-1 text-2xl font-semibold ${tone === "bad" ? "text-bad" : ""}`}>{value}</div>
    </div>
  );
}

function Counts() {
  const live = useSandboxes("live");
  const ended = useSandboxes("ended");
  const count = (state: string) => live.sandboxes.filter((sandbox) => sandbox.state === state).length;
  const day = Date.now() - 86_400_000;
  const recent = [...live.sandboxes, ...ended.sandboxes].filter((sandbox) => Date.parse(sandbox.created_at) > day);
  const errors = ended.sandboxes.filter(
    (sandbox) => sandbox.state === "error" && Date.parse(sandbox.ended_at ?? sandbox.created_at) > day,
  );
  const attempts = useAttempts();
  const failed = failedSince(attempts.data?.items ?? [], day);
  const plus = ended.hasNextPage ? "+" : "";
  return (
    <div className="grid grid-cols-2 gap-3 sm:grid-cols-3 lg:grid-cols-5">
      <Figure name="Running" value={count("running") + count("creating")} />
      <Figure name="Paused" value={count("paused")} />
      <Figure name="Created in 24 h" value={`${recent.length}${plus}`} />
      <Figure name="Failed attempts in 24 h" value={failed} tone={failed > 0 ? "bad" : undefined} />
      <Figure
        name="Sandbox errors in 24 h"
        value={`${errors.length}${plus}`}
        tone={errors.length > 0 ? "bad" : undefined}
      />
    </div>
  );
}

function useAttempts() {
  return useQuery({
    queryKey: ["tasks", "newest-attempts"],
    queryFn: () => take(api.GET("/api/v1/attempts", { params: { query: { limit: 200 } } })),
  });
}

/** What waits for its turn, and what has it. */
function useQueue() {
  return useQuery({ queryKey: ["queue"], queryFn: () => take(api.GET("/api/v1/queue")), refetchInterval: 10_000 });
}

function useServerMetrics(operating: boolean) {
  return useQuery({
    queryKey: ["metrics"],
    queryFn: async () => parseMetrics(await (await raw("/metrics", { as: "operator" })).text()),
    refetchInterval: 10_000,
    enabled: operating,
  });
}

function useBudgets() {
  return useQuery({
    queryKey: ["budgets"],
    queryFn: () => take(api.GET("/api/v1/budgets", { params: { query: { limit: 200 } } })),
    refetchInterval: 15_000,
  });
}

function useQuotas() {
  return useQuery({ queryKey: ["quotas"], queryFn: () => take(api.GET("/api/v1/quotas")), refetchInterval: 15_000 });
}

function Alerts({ operating }: { operating: boolean }) {
  const attention = useQuery({
    queryKey: ["tasks", "attention"],
    queryFn: () => take(api.GET("/api/v1/tasks", { params: { query: { needs_attention: true, limit: 200 } } })),
  });
  const webhooks = useQuery({
    queryKey: ["webhooks"],
    queryFn: () => take(api.GET("/api/v1/webhooks", { params: { query: { limit: 200 } } })),
    refetchInterval: 15_000,
  });
  const [budgets, quotas, queue, metrics] = [useBudgets(), useQuotas(), useQueue(), useServerMetrics(operating)];
  const alerts = alertsOf({
    budgets: budgets.data?.items,
    quotas: quotas.data,
    attention: attention.data?.items.length,
    waited_s: queue.data?.oldest_wait_s,
    webhooks: webhooks.data?.items,
    metrics: metrics.data,
    now_s: Date.now() / 1000,
  });
  const asked: [string, { error: unknown; data: unknown }][] = [
    ["budgets", budgets],
    ["quotas", quotas],
    ["tasks", attention],
    ["the queue", queue],
    ["webhooks", webhooks],
    ...(!operating ? [] : ([["the server's figures", metrics]] as [string, typeof metrics][])),
  ];
  // What could not be looked at may be on fire: that is not the same as quiet.
  const unknown = asked.filter(([, query]) => query.error !== null).map(([name]) => name);
  const pending = asked.some(([, query]) => query.data === undefined && query.error === null);
  const line = "flex items-center gap-2 rounded-lg border border-line bg-surface px-4 py-3";
  return (
    <>
      {alerts.length > 0 && (
        <Card title="Alerts firing" actions={<Badge tone="bad">{alerts.length}</Badge>}>
          <ul className="divide-y divide-line" aria-label="Alerts">
            {alerts.map((alert, at) => (
              <li key={at} className="flex flex-wrap items-center gap-3 px-4 py-2">
                <Badge tone={TONES[alert.severity]}>{alert.severity}</Badge>
                <span className="min-w-0 flex-1">{plainText(alert.text)}</span>
                <code className="font-mono text-xs text-dim">{alert.name}</code>
              </li>
            ))}
          </ul>
        </Card>
      )}
      {unknown.length > 0 ? (
        <p role="alert" className={line}>
          <CircleAlert aria-hidden className="size-4 shrink-0 text-warn" />
          Could not be checked: {unknown.join(", ")}.
        </p>
      ) : pending ? (
        <p role="status" className={line}>
          <LoaderCircle aria-hidden className="size-4 animate-spin" />
          Looking for alerts…
        </p>
      ) : (
        alerts.length === 0 && (
          <p role="status" className={line}>
            <CircleCheck aria-hidden className="size-4 text-ok" />
            No alerts are firing.
          </p>
        )
      )}
    </>
  );
}

function QueueCard() {
  const query = useQueue();
  const tasks = useQuery({
    queryKey: ["tasks", "titles"],
    queryFn: () => take(api.GET("/api/v1/tasks", { params: { query: { limit: 200 } } })),
  });
  const titles = new Map(tasks.data?.items.map((task) => [task.id, task.title]));
  return (
    <Card title="Queue" actions={<CopyAs recipe={{ curl: curl("GET", "/api/v1/queue") }} />}>
      <Loaded query={query}>
        {({ limits, running, parked, queued, oldest_wait_s: waited, runs, elsewhere }) => (
          <>
            <Facts
              facts={[
                ["At work", `${running} of ${limits.per_project ?? "any number"}`],
                ["Waiting", parked > 0 ? `${queued}, and ${parked} for a person` : queued],
                ["Oldest has waited", waited ? span(waited * 1000) : "–"],
                [
                  "Elsewhere on this server",
                  `${elsewhere.running} at work, ${elsewhere.queued} waiting, ${limits.in_all} at a time`,
                ],
              ]}
            />
            {runs.length > 0 && (
              <ul
                className="max-h-60 divide-y divide-line overflow-y-auto border-t border-line"
                tabIndex={0}
                aria-label="Runs"
              >
                {runs.map((run) => (
                  <li key={run.run_id} className="flex items-center gap-3 px-4 py-1.5">
                    <Badge tone={run.state === "running" ? "warn" : "dim"}>{run.state}</Badge>
                    {run.task_id ? (
                      <Link
                        to="/tasks/$task"
                        params={{ task: run.task_id }}
                        className="min-w-0 flex-1 truncate text-accent underline"
                      >
                        {plainText(titles.get(run.task_id) ?? `task ${run.task_id}`)}
                      </Link>
                    ) : (
                      <span className="min-w-0 flex-1 truncate font-mono text-xs">{run.run_id}</span>
                    )}
                    {run.position && <span className="text-dim">number {run.position}</span>}
                    <span className="text-dim">
                      <Ago at={run.started_at ?? run.created_at} />
                    </span>
                  </li>
                ))}
              </ul>
            )}
          </>
        )}
      </Loaded>
    </Card>
  );
}

function BudgetsCard() {
  const query = useBudgets();
  return (
    <Card
      title="Budgets"
      actions={
        <Link to="/settings/budgets" className="text-accent underline">
          Change
        </Link>
      }
    >
      <Loaded query={query}>
        {({ items }) =>
          items.length === 0 ? (
            <Empty title="No budget is set" />
          ) : (
            <ul className="divide-y divide-line">
              {items.map((budget) => (
                <li key={budget.id} className="space-y-1.5 px-4 py-3">
                  <div className="flex justify-between gap-3">
                    <span>
                      {budget.sandbox_id ? `Sandbox ${budget.sandbox_id}` : "The project"}, each {budget.period}
                    </span>
                    <span className={budget.exceeded ? "font-medium text-bad" : "text-dim"}>
                      {money(budget.spent, budget.currency)} of {money(budget.amount, budget.currency)}
                    </span>
                  </div>
                  <Meter
                    value={budget.spent}
                    top={budget.amount}
                    label={`Spent of the budget of each ${budget.period}`}
                  />
                </li>
              ))}
            </ul>
          )
        }
      </Loaded>
    </Card>
  );
}

function QuotaCard() {
  const query = useQuotas();
  return (
    <Card title="Quotas" actions={<CopyAs recipe={{ curl: curl("GET", "/api/v1/quotas") }} />}>
      <Loaded query={query}>
        {({ limits, used }) => {
          const rows: [string, number, number | null | undefined, (value: number) => string][] = [
            ["Sandboxes", used.sandboxes, limits.sandboxes, String],
            ["Processors", used.cpus, limits.cpus, String],
            ["Memory", used.memory_mib, limits.memory_mib, mebibytes],
            ["Disk", used.disk_mib, limits.disk_mib, mebibytes],
          ];
          return (
            <ul className="divide-y divide-line">
              {rows.map(([name, value, limit, write]) => (
                <li key={name} className="space-y-1.5 px-4 py-3">
                  <div className="flex justify-between gap-3">
                    <span>{name}</span>
                    <span className="text-dim">
                      {write(value)} of {limit === null || limit === undefined ? "no limit" : write(limit)}
                    </span>
                  </div>
                  {limit !== null && limit !== undefined && <Meter value={value} top={limit} label={name} />}
                </li>
              ))}
            </ul>
          );
        }}
      </Loaded>
    </Card>
  );
}

/** How often agents and models succeed, by the newest attempts. */
function Success() {
  const names = useAgentNames();
  const query = useAttempts();
  return (
    <Card title="Success of agents">
      <Loaded query={query}>
        {({ items, next }) => {
          const rows = successByAgent(items);
          if (rows.length === 0) return <Empty title="No attempts yet" />;
          return (
            <>
              <Table label="Success of agents" head={["Agent", "Model", "Ended", "Succeeded"]}>
                {rows.map(({ agent, model, ended, succeeded }) => (
                  <tr key={`${agent} ${model ?? ""}`}>
                    <Cell className="font-medium">{plainText(names.get(agent) ?? "a removed agent")}</Cell>
                    <Cell className="font-mono text-xs text-dim">{model === undefined ? "–" : plainText(model)}</Cell>
                    <Cell className="tabular-nums">{ended}</Cell>
                    <Cell className="tabular-nums">
                      {ended === 0 ? "–" : `${succeeded} (${Math.round((100 * succeeded) / ended)}%)`}
                    </Cell>
                  </tr>
                ))}
              </Table>
              {next && <p className="border-t border-line px-4 py-2 text-dim">Of the newest 200 attempts.</p>}
            </>
          );
        }}
      </Loaded>
    </Card>
  );
}

function CommandTimes() {
  const query = useQuery({
    queryKey: ["executions", "all"],
    queryFn: () => take(api.GET("/api/v1/executions", { params: { query: { limit: 200 } } })),
  });
  return (
    <Card title="Newest commands">
      <Loaded query={query}>
        {({ items: all }) => {
          // git around an agent's work is the server's own.
          const items = all.filter((one) => !isPlumbing(one));
          const ended = items.filter((one) => one.ended_at);
          const times = ended
            .map((one) => Date.parse(one.ended_at ?? "") - Date.parse(one.started_at))
            .sort((a, b) => a - b);
          const failed = items.filter(
            (one) => one.state === "failed" || (one.state === "exited" && one.exit_code !== 0),
          ).length;
          const show = (share: number) => {
            const value = percentile(times, share);
            return value === undefined ? "–" : duration(value);
          };
          return (
            <Facts
              facts={[
                ["Median", show(0.5)],
                ["p95", show(0.95)],
                ["p99", show(0.99)],
                ["Failed", `${failed} of ${items.length}`],
              ]}
            />
          );
        }}
      </Loaded>
    </Card>
  );
}

function latency(metrics: Metrics, name: string): [string, string][] {
  return [0.5, 0.95, 0.99].map((share) => {
    const value = quantile(metrics, name, share);
    return [`p${share * 100}`, value === undefined ? "–" : duration(value * 1000)];
  });
}

function Server() {
  const query = useServerMetrics(true);
  const ready = useQuery({
    queryKey: ["ready"],
    queryFn: async () => (await raw("/api/v1/ready")).json() as Promise<{ version: string }>,
    refetchInterval: 10_000,
    retry: false,
  });
  return (
    <>
      <h2 className="pt-2 text-lg font-semibold">The whole server</h2>
      {ready.error !== null && <ErrorBox error={ready.error} />}
      <Loaded query={query}>
        {(metrics) => {
          const size = gauge(metrics, "coffer_pool_size_bytes");
          const free = gauge(metrics, "coffer_pool_free_bytes");
          return (
            <div className="grid gap-4 lg:grid-cols-2">
              <Card title="Create a sandbox">
                <Facts facts={latency(metrics, "sandbox_creation_duration_seconds")} />
              </Card>
              <Card title="Run a command">
                <Facts facts={latency(metrics, "sandbox_execution_duration_seconds")} />
              </Card>
              <Card title="Answer a request">
                <Facts facts={latency(metrics, "coffer_http_request_duration_seconds")} />
              </Card>
              <Card title="Since it started">
                <Facts
                  facts={[
                    ["Sandboxes created", total(metrics, "sandbox_spawn_total")],
                    ["Failed", total(metrics, "sandbox_error_total")],
                    ["Requests refused", total(metrics, "coffer_api_refusals_total")],
                    ["Orphans found", total(metrics, "sandbox_orphan_total")],
                  ]}
                />
              </Card>
              <Card title="Host" className="lg:col-span-2">
                <Facts
                  facts={[
                    [
                      "Node",
                      <Badge key="node" tone={gauge(metrics, "coffer_node_up") === 1 ? "ok" : "bad"}>
                        {gauge(metrics, "coffer_node_up") === 1 ? "up" : "away"}
                      </Badge>,
                    ],
                    ["Warm sandboxes", gauge(metrics, "coffer_warm_sandboxes") ?? "–"],
                    [
                      "Disk for sandboxes",
                      size === undefined || free === undefined ? "–" : `${bytes(size - free)} of ${bytes(size)}`,
                    ],
                    ["Waiting writes", gauge(metrics, "coffer_store_write_queue") ?? "–"],
                    ["Open event streams", gauge(metrics, "coffer_event_readers") ?? "–"],
                    ["Version", ready.data?.version ?? "–"],
                  ]}
                />
              </Card>
            </div>
          );
        }}
      </Loaded>
    </>
  );
}

export function Monitoring() {
  const { operating = false, project } = useSession() ?? {};
  // An operator who has opened no project sees the server.
  if (project === undefined) return <Page title="Monitoring">{operating && <Server />}</Page>;
  return (
    <Page title="Monitoring">
      <Alerts operating={operating} />
      <Counts />
      <div className="grid gap-4 lg:grid-cols-2">
        <Spending />
        <QueueCard />
        <BudgetsCard />
        <QuotaCard />
        <Success />
        <CommandTimes />
      </div>
      {operating && <Server />}
    </Page>
  );
}
