import { expect, test } from "vitest";
import { alertsOf } from "./alerts";
import { parseMetrics } from "./metrics";

const budget = (spent: number) => ({
  id: "b",
  period: "month" as const,
  amount: 10,
  warn_at: [],
  action: "pause" as const,
  spent,
  currency: "USD",
  exceeded: spent >= 10,
  created_at: "",
});
const names = (...known: Parameters<typeof alertsOf>) => alertsOf(...known).map(({ name }) => name);

test("nothing is wrong where nothing is", () => {
  const metrics = parseMetrics(
    "coffer_node_up 1\ncoffer_pool_size_bytes 100\ncoffer_pool_free_bytes 50\nsandbox_orphan_found_timestamp_seconds 0\n",
  );
  expect(names({ now_s: 100_000, metrics, budgets: [budget(7.9)] })).toEqual([]);
});

test("what the rules for Prometheus call wrong is wrong here, the worst first", () => {
  const metrics = parseMetrics(
    'coffer_node_up 0\ncoffer_pool_size_bytes 100\ncoffer_pool_free_bytes 19\nsandbox_orphan_found_timestamp_seconds 99500\ncoffer_circuit_breaker_state{dependency="node"} 2\n',
  );
  expect(names({ now_s: 100_000, metrics, budgets: [budget(8), budget(10)] })).toEqual([
    "CofferNodeDown",
    "SandboxBudgetSpent",
    "CofferPoolNearlyFull",
    "SandboxOrphanFound",
    "CircuitBreakerOpen",
    "SandboxCostThreshold",
  ]);
});

test("a quota that is used up, a queue that waits and tasks that need somebody are told", () => {
  const limits = { sandboxes: 3, cpus: null, memory_mib: null, disk_mib: null, forks: null };
  const quotas = { own: {}, limits, used: { sandboxes: 3, cpus: 1, memory_mib: 1, disk_mib: 1 } } as Parameters<
    typeof alertsOf
  >[0]["quotas"];
  expect(names({ now_s: 0, quotas, attention: 2, waited_s: 1801 })).toEqual([
    "QuotaReached",
    "TaskNeedsAttention",
    "CofferRunsWait",
  ]);
});

test("webhooks that are not taken are told: the project's own by address, else how many there are", () => {
  const webhook = {
    id: "w",
    url: "https://a.example/",
    events: [],
    description: "",
    enabled: true,
    waiting: 3,
    failures: 9,
    failing_since: new Date(0).toISOString(),
    created_at: "",
    updated_at: "",
  };
  const told = (known: Omit<Parameters<typeof alertsOf>[0], "now_s">, now_s = 3601) =>
    alertsOf({ now_s, ...known }).map(({ name, text }) => [name, text]);
  expect(told({ webhooks: [webhook] })).toEqual([["CofferWebhooksFail", "Webhooks fail at https://a.example/."]]);
  expect(told({ webhooks: [webhook] }, 3600)).toEqual([]);
  expect(
    told({
      webhooks: [
        { ...webhook, enabled: false },
        { ...webhook, failing_since: null },
      ],
    }),
  ).toEqual([]);
  const metrics = parseMetrics("coffer_webhooks_failing 2\ncoffer_webhook_oldest_wait_seconds 3601\n");
  expect(told({ metrics })).toEqual([
    ["CofferWebhooksFail", "2 receivers of webhooks on this server do not accept deliveries."],
  ]);
});
