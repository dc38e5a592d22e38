import { expect, it } from "vitest";
import { gauge, parseMetrics, quantile, total } from "./metrics";

const TEXT = `# TYPE a counter
a_total{kind="x \\"y\\"",b="1"} 3
a_total{kind="z"} 4
up 1
h_bucket{le="0.1"} 5
h_bucket{le="1.0"} 10
h_bucket{le="+Inf"} 10
# EOF
`;

it("reads counters, gauges and histograms", () => {
  const metrics = parseMetrics(TEXT);
  expect(total(metrics, "a_total")).toBe(7);
  expect(metrics[0]?.labels).toEqual({ kind: 'x \\"y\\"', b: "1" });
  expect(gauge(metrics, "up")).toBe(1);
  expect(gauge(metrics, "down")).toBeUndefined();
  expect(quantile(metrics, "h", 0.5)).toBeCloseTo(0.1);
  expect(quantile(metrics, "h", 0.75)).toBeCloseTo(0.55);
  expect(quantile(metrics, "none", 0.5)).toBeUndefined();
});
