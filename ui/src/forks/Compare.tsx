// What two forks changed, file by file, side by side.
import { useMemo, useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { api, take, type Schemas } from "../api/client";
import { PatchLines } from "../repositories/PatchLines";
import { parsePatch } from "../repositories/patch";
import { Badge } from "../ui/Badge";
import { CopyAs, curl } from "../ui/CopyAs";
import { Empty, Loaded } from "../ui/feedback";
import { SelectField } from "../ui/fields";
import { plainText } from "../ui/format";
import { Card } from "../ui/layout";
import { SideBySide } from "../work/SideBySide";
import { byRank, costOf, type Competition, type Entry } from "./competitions";

type Side = Schemas["CompetitionFileChange"];

function Half({ side, path, who }: { side: Side | null | undefined; path: string; who: string }) {
  const patch = side?.patch ?? "";
  const file = useMemo(() => ({ path, hunks: parsePatch(patch).flatMap((one) => one.hunks) }), [path, patch]);
  return (
    <div className="min-w-0">
      <p className="flex items-center gap-2 border-b border-line px-4 py-1.5 text-xs text-dim">
        <span className="min-w-0 flex-1 truncate font-medium text-ink">{who}</span>
        {side ? (
          <>
            <span className="text-ok">+{side.added}</span>
            <span className="text-bad">−{side.removed}</span>
          </>
        ) : (
          "left alone"
        )}
      </p>
      {side &&
        (file.hunks.length === 0 ? (
          <p className="px-4 py-3 text-dim">No lines to show.</p>
        ) : (
          <PatchLines file={file} label={`Changes of ${path} by ${who}`} />
        ))}
    </div>
  );
}

function figuresOf(entry: Entry, amount: (cost: number) => string) {
  const cost = costOf(entry);
  return {
    name: `${entry.number} ${plainText(entry.label)}`,
    check: entry.check ? { passed: entry.check.passed } : undefined,
    time: entry.duration_ms ?? undefined,
    cost: cost === undefined ? undefined : amount(cost),
    tokens: (entry.input_tokens ?? 0) + (entry.output_tokens ?? 0) || undefined,
    changes: entry.diff ? { files: entry.diff.files, added: entry.diff.added, removed: entry.diff.removed } : undefined,
  };
}

export function Compare({ competition, amount }: { competition: Competition; amount: (cost: number) => string }) {
  const made = competition.entries.filter((entry) => entry.diff).sort(byRank);
  const [chosen, setChosen] = useState<{ left?: number; right?: number }>({});
  const left = made.find((entry) => entry.number === chosen.left) ?? made[0];
  const right =
    made.find((entry) => entry.number === chosen.right && entry !== left) ?? made.find((entry) => entry !== left);
  const pair = { left: left?.number ?? 0, right: right?.number ?? 0 };
  const query = useQuery({
    queryKey: ["forks", "compare", competition.id, pair.left, pair.right],
    queryFn: () =>
      take(
        api.GET("/api/v1/sandboxes/fork/{fork}/compare", { params: { path: { fork: competition.id }, query: pair } }),
      ),
    enabled: left !== undefined && right !== undefined,
  });
  if (left === undefined || right === undefined) return null;
  const choose = (side: "left" | "right", label: string, value: number, other: number) => (
    <SelectField
      label={label}
      hideLabel
      value={value}
      onChange={(event) =>
        setChosen({
          ...pair,
          [side]: Number(event.target.value),
          ...(Number(event.target.value) === other ? { [side === "left" ? "right" : "left"]: value } : {}),
        })
      }
    >
      {made.map((entry) => (
        <option key={entry.number} value={entry.number}>
          {`${entry.number} ${plainText(entry.label)}`}
        </option>
      ))}
    </SelectField>
  );
  return (
    <Card
      title="Compare"
      actions={
        <span className="flex flex-wrap items-center gap-2">
          {choose("left", "On the left", pair.left, pair.right)}
          <span className="text-dim">and</span>
          {choose("right", "On the right", pair.right, pair.left)}
          <CopyAs
            recipe={{
              curl: curl(
                "GET",
                `/api/v1/sandboxes/fork/${competition.id}/compare?left=${pair.left}&right=${pair.right}`,
              ),
            }}
          />
        </span>
      }
    >
      <SideBySide left={figuresOf(left, amount)} right={figuresOf(right, amount)} />
      <Loaded query={query} what="Comparing">
        {(compared) =>
          compared.files.length === 0 ? (
            <Empty title="Neither changed anything" />
          ) : (
            <ul className="divide-y divide-line">
              {compared.files.map((file) => (
                <li key={file.path} aria-label={plainText(file.path)}>
                  <p className="flex flex-wrap items-center gap-2 bg-raised px-4 py-2 font-mono text-sm break-all">
                    {plainText(file.path)}
                    {file.same && <Badge tone="ok">alike</Badge>}
                  </p>
                  {file.same ? (
                    <Half side={file.left} path={file.path} who="both" />
                  ) : (
                    <div className="grid lg:grid-cols-2 lg:divide-x lg:divide-line">
                      <Half side={file.left} path={file.path} who={plainText(compared.left.label)} />
                      <Half side={file.right} path={file.path} who={plainText(compared.right.label)} />
                    </div>
                  )}
                </li>
              ))}
              {compared.truncated && <li className="px-4 py-3 text-dim">There is more than is shown.</li>}
            </ul>
          )
        }
      </Loaded>
    </Card>
  );
}
