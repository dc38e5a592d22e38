// What is wrong now, as far as the figures of this moment tell. Names and thresholds are those of monitoring/alerts.yml;
// alerts that need rates over time are Prometheus's alone.
import type { Schemas } from "../api/client";
import { bytes, money, span } from "../ui/format";
import { gauge, type Metrics } from "./metrics";

export interface Alert {
  name: string;
  severity: "critical" | "warning" | "info";
  text: string;
}

type Budget = Schemas["Budget"];
type Quotas = Schemas["QuotaState"];
type Webhook = Schemas["Webhook"];

const NEARLY = 0.8;
const ORPHAN_S = 900;
/** A run that has waited for so long waits for something. */
const LONG_WAIT_S = 1800;
/** A receiver that has failed for so long is not just starting again. */
const LONG_FAILURE_S = 3600;

interface Known {
  budgets?: Budget[];
  quotas?: Quotas;
  /** How many tasks need you. */
  attention?: number;
  waited_s?: number | null;
  webhooks?: Webhook[];
  metrics?: Metrics;
  now_s: number;
}

const QUOTAS = { sandboxes: "sandboxes", cpus: "processors", memory_mib: "memory", disk_mib: "disk" } as const;

const RANK = { critical: 0, warning: 1, info: 2 } as const;

/** Receivers of webhooks that do not take what they are sent: the project's own by name, else how many there are anywhere. */
function failingWebhooks(webhooks: Webhook[], metrics: Metrics, now_s: number): string | undefined {
  const failing = webhooks.filter(
    ({ enabled, waiting, failing_since: since }) =>
      enabled && waiting > 0 && since && now_s - Date.parse(since) / 1000 > LONG_FAILURE_S,
  );
  if (failing.length > 0) return `Webhooks fail at ${failing.map(({ url }) => url).join(", ")}.`;
  const [count, waited] = [
    gauge(metrics, "coffer_webhooks_failing") ?? 0,
    gauge(metrics, "coffer_webhook_oldest_wait_seconds") ?? 0,
  ];
  if (count === 0 || waited <= LONG_FAILURE_S) return undefined;
  return `${count === 1 ? "A receiver" : `${count} receivers`} of webhooks on this server ${count === 1 ? "does" : "do"} not accept deliveries.`;
}

export function alertsOf({
  budgets = [],
  quotas,
  attention = 0,
  waited_s: waited,
  webhooks = [],
  metrics = [],
  now_s: now,
}: Known): Alert[] {
  const found: Alert[] = [];
  const add = (name: string, severity: Alert["severity"], text: string) => found.push({ name, severity, text });
  if (gauge(metrics, "coffer_node_up") === 0)
    add(
      "CofferNodeDown",
      "critical",
      "The host of the sandboxes does not answer: sandboxes cannot be created, paused or destroyed.",
    );
  const [size, free] = [gauge(metrics, "coffer_pool_size_bytes"), gauge(metrics, "coffer_pool_free_bytes")];
  if (size !== undefined && free !== undefined && size > 0 && 1 - free / size > NEARLY) {
    add("CofferPoolNearlyFull", "warning", `The disk of the sandboxes has ${bytes(free)} left of ${bytes(size)}.`);
  }
  const orphan = gauge(metrics, "sandbox_orphan_found_timestamp_seconds");
  if (orphan !== undefined && now - orphan < ORPHAN_S)
    add("SandboxOrphanFound", "warning", "The server removed remains of a sandbox that has no record.");
  for (const sample of metrics) {
    if (sample.name === "coffer_circuit_breaker_state" && sample.value === 2) {
      add(
        "CircuitBreakerOpen",
        "warning",
        `${sample.labels.dependency ?? "Something"} failed repeatedly and is not called for a while.`,
      );
    }
  }
  for (const { spent, amount, currency, period, sandbox_id: sandbox } of budgets) {
    const whose = `${money(spent, currency)} of the ${money(amount, currency)} ${period === "total" ? "in all" : `for each ${period}`}${sandbox ? ` of sandbox ${sandbox}` : ""}`;
    if (spent >= amount) add("SandboxBudgetSpent", "critical", `A budget is spent: ${whose}.`);
    else if (spent >= NEARLY * amount) add("SandboxCostThreshold", "warning", `A budget is nearly spent: ${whose}.`);
  }
  for (const [name, word] of Object.entries(QUOTAS) as [keyof typeof QUOTAS, string][]) {
    const limit = quotas?.limits[name];
    if (quotas !== undefined && limit && quotas.used[name] >= limit)
      add("QuotaReached", "warning", `The quota of ${word} is used up: no more sandboxes can be created.`);
  }
  if (attention > 0)
    add("TaskNeedsAttention", "warning", attention === 1 ? "A task needs you." : `${attention} tasks need you.`);
  if (waited && waited > LONG_WAIT_S)
    add("CofferRunsWait", "warning", `A run has been queued for ${span(waited * 1000)}.`);
  const untaken = failingWebhooks(webhooks, metrics, now);
  if (untaken !== undefined) add("CofferWebhooksFail", "info", untaken);
  return found.sort((a, b) => RANK[a.severity] - RANK[b.severity]);
}
