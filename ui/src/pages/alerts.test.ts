import { expect, test } from "vitest";
import { alertsOf } from "./alerts";
import { parseMetrics } from "./metrics";

const budget = (spent: number) => ({ id: "b", period: "month" as const, amount: 10, warn_at: [], action: "pause" as const, spent, currency: "USD", exceeded: spent >= 10, created_at: "" });
const names = (...known: Parameters<typeof alertsOf>) => alertsOf(...known).map(({ name }) => name);

test("nothing is wrong where nothing is", () => {
  const metrics = parseMetrics("coffer_node_up 1\ncoffer_pool_size_bytes 100\ncoffer_pool_free_bytes 50\nsandbox_orphan_found_timestamp_seconds 0\n");
  expect(names({ now_s: 100_000, metrics, budgets: [budget(7.9)] })).toEqual([]);
});

test("what the rules for Prometheus call wrong is wrong here, the worst first", () => {
  const metrics = parseMetrics('coffer_node_up 0\ncoffer_pool_size_bytes 100\ncoffer_pool_free_bytes 19\nsandbox_orphan_found_timestamp_seconds 99500\ncoffer_circuit_breaker_state{dependency="node"} 2\n');
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
  const quotas = { own: {}, limits, used: { sandboxes: 3, cpus: 1, memory_mib: 1, disk_mib: 1 } } as Parameters<typeof alertsOf>[0]["quotas"];
  expect(names({ now_s: 0, quotas, attention: 2, waited_s: 601 })).toEqual(["QuotaReached", "TaskNeedsAttention", "QueueWaits"]);
});
