// Where money goes: by day with its source, and the agents, models, tasks and repositories that cost most.
import { lazy, Suspense, useMemo, useState } from "react";
import { useMutation, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Download } from "lucide-react";
import { saveAnswer } from "../api/files";
import { api, raw, take, type Schemas } from "../api/client";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Empty, Loaded, Loading, toastError } from "../ui/feedback";
import { SelectField } from "../ui/fields";
import { money, plainText } from "../ui/format";
import { Card, Cell, Table } from "../ui/layout";
import { daysOf, EXAMPLE_PRICES, mostExpensive, spentOf, sumOf } from "./spending";

const Chart = lazy(() => import("../ui/Chart").then((module) => ({ default: module.Chart })));

type Group = "agent" | "model" | "task" | "repository";

const GROUPS: [Group, string][] = [
  ["agent", "Agents"],
  ["model", "Models"],
  ["task", "Tasks"],
  ["repository", "Repositories"],
];
const RANGES = [7, 30, 90, 365];

const dayBefore = (days: number) => new Date(Date.now() - days * 86_400_000).toISOString().slice(0, 10);

/** Pages of lines, all of them. A project has more tasks than one page. */
async function usage(group: "day" | Group, from: string) {
  const items: Schemas["UsageEntry"][] = [];
  let cursor: string | undefined;
  for (let pages = 0; pages < 10; pages += 1) {
    const query = { group_by: group, from, limit: 200, cursor };
    const page = await take(api.GET("/api/v1/usage", { params: { query } }));
    items.push(...page.items);
    if (!page.next) break;
    cursor = page.next;
  }
  return items;
}

function Name({ group, line }: { group: Group; line: Schemas["UsageEntry"] }) {
  if (group === "task" && line.task_id) {
    return (
      <Link to="/tasks/$task" params={{ task: line.task_id }} className="text-accent underline">
        {plainText(line.label ?? "a deleted task")}
      </Link>
    );
  }
  if (group === "task") return <span className="text-dim">No task</span>;
  if (group === "agent") return line.agent_id ? plainText(line.label ?? "a removed agent") : "No agent";
  if (group === "model") return <span className="font-mono text-xs">{plainText(line.model ?? "not reported")}</span>;
  return line.repository ? plainText(line.repository) : <span className="text-dim">No repository</span>;
}

function Top({ group, from, examples }: { group: Group; from: string; examples: boolean }) {
  const query = useQuery({
    queryKey: ["usage", group, from],
    queryFn: () => usage(group, from),
    refetchInterval: 60_000,
  });
  return (
    <Loaded query={query}>
      {(items) => {
        const rows = mostExpensive(items, examples).slice(0, 20);
        if (rows.length === 0) return <Empty title="Nothing was used in this time" />;
        const currency = items[0]?.currency ?? "";
        const names = Object.fromEntries(GROUPS) as Record<Group, string>;
        return (
          <Table
            label={`Cost by ${group}`}
            head={[names[group], "Total", ...(group === "model" ? [] : ["Sandboxes"]), "Gateway", "Reported", "Calls"]}
          >
            {rows.map((line, at) => {
              const spent = spentOf(line, examples);
              return (
                <tr key={at}>
                  <Cell className="max-w-72 truncate font-medium">
                    <Name group={group} line={line} />
                  </Cell>
                  <Cell className="font-medium tabular-nums">{money(spent.total, currency)}</Cell>
                  {group !== "model" && (
                    <Cell className="text-dim tabular-nums">{money(spent.sandboxes, currency)}</Cell>
                  )}
                  <Cell className="text-dim tabular-nums">{money(spent.gateway, currency)}</Cell>
                  <Cell className="text-dim tabular-nums">{money(spent.reported, currency)}</Cell>
                  <Cell className="text-dim tabular-nums">{line.model_calls}</Cell>
                </tr>
              );
            })}
          </Table>
        );
      }}
    </Loaded>
  );
}

export function Spending() {
  const [range, setRange] = useState(30);
  const [group, setGroup] = useState<Group>("agent");
  const [asTable, setAsTable] = useState(false);
  const [examples, setExamples] = useState(false);
  const from = dayBefore(range - 1);
  const query = useQuery({
    queryKey: ["usage", "day", from],
    queryFn: () => usage("day", from),
    refetchInterval: 30_000,
  });
  const csv = useMutation({
    mutationFn: async () =>
      saveAnswer(await raw(`/api/v1/usage?group_by=${group}&from=${from}&format=csv`), `usage-by-${group}.csv`),
    onError: toastError,
  });
  const days = useMemo(() => daysOf(query.data ?? [], range, examples), [query.data, range, examples]);
  return (
    <Card
      title="Spending"
      className="lg:col-span-2"
      actions={
        <div className="flex flex-wrap items-center gap-2">
          <SelectField
            label="Range"
            hideLabel
            value={String(range)}
            onChange={(event) => setRange(Number(event.target.value))}
          >
            {RANGES.map((one) => (
              <option key={one} value={one}>
                {one === 365 ? "1 year" : `${one} days`}
              </option>
            ))}
          </SelectField>
          <Button onClick={() => setAsTable(!asTable)}>{asTable ? "Chart" : "Table"}</Button>
          <CopyAs recipe={{ curl: curl("GET", `/api/v1/usage?group_by=day&from=${from}`) }} />
        </div>
      }
    >
      <Loaded query={query}>
        {(items) => {
          if (items.length === 0) return <Empty title={`Nothing was used in ${range} days`} />;
          const currency = items[0]?.currency ?? "";
          const sum = sumOf(items, examples);
          const unpriced = items.every((line) => line.cost === 0);
          const used = days.filter((day) => day.total > 0 || day.hours > 0);
          return (
            <>
              <dl className="grid grid-cols-2 gap-3 px-4 pt-4 sm:grid-cols-4">
                {(
                  [
                    ["Total", sum.total],
                    [examples ? "Sandbox time (example)" : "Sandbox time", sum.sandboxes],
                    ["Models, by the gateway", sum.gateway],
                    ["Models, as agents report", sum.reported],
                  ] as const
                ).map(([name, value], at) => (
                  <div key={name}>
                    <dt className="text-xs text-dim">{name}</dt>
                    <dd className={at === 0 ? "text-2xl font-semibold" : "text-lg"}>{money(value, currency)}</dd>
                  </div>
                ))}
              </dl>
              {asTable ? (
                <Table label="Cost by day" head={["Day", "Total", "Sandboxes", "Gateway", "Reported", "Running"]}>
                  {[...used].reverse().map((day) => (
                    <tr key={day.day}>
                      <Cell className="whitespace-nowrap">{day.day}</Cell>
                      <Cell className="font-medium tabular-nums">{money(day.total, currency)}</Cell>
                      <Cell className="text-dim tabular-nums">{money(day.sandboxes, currency)}</Cell>
                      <Cell className="text-dim tabular-nums">{money(day.gateway, currency)}</Cell>
                      <Cell className="text-dim tabular-nums">{money(day.reported, currency)}</Cell>
                      <Cell className="text-dim tabular-nums">{Number(day.hours.toPrecision(3))} h</Cell>
                    </tr>
                  ))}
                </Table>
              ) : (
                <Suspense fallback={<Loading />}>
                  {sum.total > 0 ? (
                    <Chart
                      bars
                      // Each series covers the ones below it: the tallest is drawn first.
                      label="Cost by day: sandbox time, models by the gateway, models as agents report"
                      times={days.map((day) => Date.parse(day.day) / 1000)}
                      series={[
                        { name: "Reported by agents", values: days.map((day) => day.total) },
                        { name: "Gateway", values: days.map((day) => day.sandboxes + day.gateway) },
                        { name: "Sandbox time", values: days.map((day) => day.sandboxes) },
                      ]}
                      stacked
                      format={(value) => money(value, currency)}
                    />
                  ) : (
                    <Chart
                      bars
                      label="Running hours by day"
                      times={days.map((day) => Date.parse(day.day) / 1000)}
                      series={[{ name: "Hours", values: days.map((day) => day.hours) }]}
                      format={(value) => `${Number(value.toPrecision(3))} h`}
                    />
                  )}
                </Suspense>
              )}
              {unpriced && (
                <div className="flex flex-wrap items-center gap-3 px-4 pb-3 text-dim">
                  <span className="min-w-60 flex-1">
                    {examples
                      ? `Examples, not your bill: ${money(EXAMPLE_PRICES.cpu_hour, "USD")} for a processor and ${money(EXAMPLE_PRICES.gib_hour, "USD")} for a GiB of memory, each hour.`
                      : "Sandbox time has no price yet. The operator sets prices in [usage] of the configuration."}
                  </span>
                  <Button onClick={() => setExamples(!examples)}>
                    {examples ? "Without example prices" : "Show example prices"}
                  </Button>
                </div>
              )}
              <div className="flex flex-wrap items-center justify-between gap-2 border-t border-line px-4 py-3">
                <div role="group" aria-label="Group by" className="flex flex-wrap gap-1">
                  {GROUPS.map(([name, title]) => (
                    <Button
                      key={name}
                      tone={name === group ? undefined : "ghost"}
                      aria-pressed={name === group}
                      onClick={() => setGroup(name)}
                    >
                      {title}
                    </Button>
                  ))}
                </div>
                <Button
                  busy={csv.isPending}
                  onClick={() => csv.mutate()}
                  icon={<Download aria-hidden className="size-4" />}
                >
                  CSV
                </Button>
              </div>
              <Top group={group} from={from} examples={examples} />
            </>
          );
        }}
      </Loaded>
    </Card>
  );
}
