/** A small line without axes, for a row of a list. `top` is the value at its upper edge. */
export function Sparkline({ values, top, label }: { values: number[]; top: number; label: string }) {
  const [width, height] = [72, 20];
  const step = values.length > 1 ? width / (values.length - 1) : 0;
  const y = (value: number) => height - 1 - Math.min(1, Math.max(0, value / (top || 1))) * (height - 2);
  const points = values.map((value, at) => `${(at * step).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  return (
    <svg role="img" aria-label={label} width={width} height={height} className="shrink-0 text-accent">
      <line x1="0" x2={width} y1={height - 0.5} y2={height - 0.5} className="stroke-line" />
      {values.length > 1 && <polyline points={points} fill="none" stroke="currentColor" strokeWidth="1.5" />}
    </svg>
  );
}
