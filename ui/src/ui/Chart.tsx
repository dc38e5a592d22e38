// Lines over time, by uPlot. The figures are also there as text, for those who do not see the picture.
import "uplot/dist/uPlot.min.css";
import { useEffect, useRef } from "react";
import uPlot from "uplot";
import { useDark } from "../shell/theme";

interface Props {
  label: string;
  /** Unix seconds. */
  times: number[];
  series: { name: string; values: (number | null)[] }[];
  top?: number;
  unit?: string;
  format?: (value: number) => string;
  /** One bar for each day, at its beginning in UTC. */
  bars?: boolean;
  /** Each series covers the next ones: together they look like a stack. */
  stacked?: boolean;
}

const COLOURS = ["--accent", "--warn", "--bad", "--info"];
/** Parts of one sum: none of them is a warning. */
const PARTS = ["--accent", "--info", "--dim"];

export function Chart({ label, times, series, top, unit = "", format, bars = false, stacked = false }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  const dark = useDark();
  const names = series.map((one) => one.name).join();
  const write = format ?? ((value: number) => `${Number(value.toPrecision(3))}${unit}`);
  const writer = useRef(write);
  writer.current = write;

  useEffect(() => {
    const place = box.current as HTMLDivElement;
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string) => style.getPropertyValue(name).trim();
    const colours = stacked ? PARTS : COLOURS;
    const axis = {
      stroke: colour("--dim"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { stroke: colour("--line"), width: 1 },
    };
    const made = new uPlot(
      {
        width: place.clientWidth,
        height: 180,
        // Bars are days, and days are those of the server's books: in UTC, wherever the reader is.
        ...(bars ? { tzDate: (seconds: number) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC") } : {}),
        // The heights of a stack are sums, which would be read as figures.
        legend: { show: names.includes(","), live: !stacked },
        cursor: { y: false },
        scales: { y: { range: (_, __, high) => [0, top ?? (high > 0 ? high * 1.1 : 1)] } },
        axes: [axis, { ...axis, size: 70, values: (_, ticks) => ticks.map((tick) => writer.current(tick)) }],
        series: [
          {},
          ...names.split(",").map((name, at) => ({
            label: name,
            stroke: colour(colours[at % colours.length] ?? "--accent"),
            width: stacked ? 0 : 1.5,
            fill: stacked
              ? colour(colours[at % colours.length] ?? "--accent")
              : bars
                ? colour("--accent-soft")
                : undefined,
            points: { show: false },
            paths: bars ? uPlot.paths.bars?.({ size: [0.6, 60] }) : undefined,
          })),
        ],
      },
      [[], ...names.split(",").map(() => [])] as uPlot.AlignedData,
      place,
    );
    plot.current = made;
    const watcher = new ResizeObserver(() => made.setSize({ width: place.clientWidth, height: 180 }));
    watcher.observe(place);
    return () => {
      watcher.disconnect();
      made.destroy();
      plot.current = undefined;
    };
  }, [dark, names, top, bars, stacked]);

  useEffect(() => {
    plot.current?.setData([times, ...series.map((one) => one.values)] as uPlot.AlignedData);
  }, [times, series, dark, names, top, bars, stacked]);

  const now = series.map((one) => {
    const value = one.values.at(-1);
    return `${one.name}: ${value === null || value === undefined ? "nothing yet" : write(value)}`;
  });
  return (
    <div className="p-3">
      <div
        ref={box}
        role="img"
        aria-label={`${label}. Newest: ${now.join(", ")}`}
        className="min-h-[180px] w-full [&_.uplot]:[font-family:inherit]"
      />
    </div>
  );
}
