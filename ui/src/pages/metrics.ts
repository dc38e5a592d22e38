// Reads the text that the server offers to Prometheus.

export interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

export type Metrics = Sample[];

const LINE = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"/g;

export function parseMetrics(text: string): Metrics {
  const samples: Metrics = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("#")) continue;
    const match = LINE.exec(line);
    if (match === null) continue;
    const labels: Record<string, string> = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(LABEL)) labels[name ?? ""] = value ?? "";
    const number = match[3] === "+Inf" ? Number.POSITIVE_INFINITY : Number(match[3]);
    samples.push({ name: match[1] ?? "", labels, value: number });
  }
  return samples;
}

export function gauge(metrics: Metrics, name: string): number | undefined {
  return metrics.find((sample) => sample.name === name)?.value;
}

export function total(metrics: Metrics, name: string): number {
  return metrics.filter((sample) => sample.name === name).reduce((sum, sample) => sum + sample.value, 0);
}

/** The value that a share of the observations stays below, over all labels, as far as the buckets tell. */
export function quantile(metrics: Metrics, name: string, share: number): number | undefined {
  const buckets = new Map<number, number>();
  for (const sample of metrics) {
    if (sample.name !== `${name}_bucket`) continue;
    const edge = sample.labels.le === "+Inf" ? Number.POSITIVE_INFINITY : Number(sample.labels.le);
    buckets.set(edge, (buckets.get(edge) ?? 0) + sample.value);
  }
  const edges = [...buckets.entries()].sort(([a], [b]) => a - b);
  const all = edges.at(-1)?.[1] ?? 0;
  if (all === 0) return undefined;
  let [below, low] = [0, 0];
  for (const [edge, count] of edges) {
    if (count >= share * all) {
      if (edge === Number.POSITIVE_INFINITY) return low;
      const within = count - below;
      return within === 0 ? edge : low + (edge - low) * ((share * all - below) / within);
    }
    below = count;
    low = edge;
  }
  return undefined;
}
