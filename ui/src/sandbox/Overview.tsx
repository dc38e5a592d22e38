import { lazy, Suspense, type ReactNode } from "react";
import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { useAgentNames } from "../api/agents";
import { api, take, type Schemas } from "../api/client";
import { useSamples, useSandbox } from "../api/sandboxes";
import { Empty, Loading } from "../ui/feedback";
import { bytes, duration, mebibytes, moment, money, plainText } from "../ui/format";
import { Card, Facts } from "../ui/layout";
import { Ago, Until } from "../ui/time";
import { OpenInEditor } from "./OpenInEditor";
import { Ports } from "./Ports";
import { reasonText } from "./naming";

const Chart = lazy(() => import("../ui/Chart").then((module) => ({ default: module.Chart })));

const AT_END: Record<string, string> = {
  kill: "destroyed",
  pause: "paused, with memory",
  pause_files_only: "paused, files only",
};

function Volumes({ mounts }: { mounts: Schemas["VolumeMount"][] }) {
  return (
    <ul>
      {mounts.map(({ name, path, read_only }) => (
        <li key={path} className="break-all">
          <Link to="/volumes" className="text-accent underline">
            {plainText(name)}
          </Link>{" "}
          <span className="text-dim">
            at <span className="font-mono">{plainText(path)}</span>
            {read_only && ", read-only"}
          </span>
        </li>
      ))}
    </ul>
  );
}

export function Overview() {
  const { id } = useParams({ from: "/shell/sandboxes/$id" });
  const sandbox = useSandbox(id).data;
  const names = useAgentNames();
  const samples = useSamples(id, sandbox?.state === "running");
  const usage = useQuery({
    queryKey: ["usage", "sandbox", id],
    queryFn: () => take(api.GET("/api/v1/usage", { params: { query: { group: "sandbox", sandbox: id } } })),
    refetchInterval: sandbox?.state === "running" ? 10_000 : false,
  });
  if (sandbox === undefined) return null;
  const used = usage.data?.items[0];
  const metadata = Object.entries(sandbox.metadata);
  const agent = sandbox.agent_id;
  const series = samples.data ?? [];
  const times = series.map((sample) => sample.timestampUnix);
  const last = series.at(-1);
  return (
    <div className="mx-auto grid max-w-[1400px] gap-4 p-3 sm:p-5 lg:grid-cols-2">
      <Card title="About" className="lg:col-span-2">
        <Facts
          facts={[
            ["Template", sandbox.template],
            ["Owner", agent === null || agent === undefined ? "no agent" : (names.get(agent) ?? agent)],
            ["Created", <Ago key="made" at={sandbox.created_at} />],
            [
              sandbox.ended_at ? "Ended" : "Deadline",
              sandbox.ended_at ? (
                moment(sandbox.ended_at)
              ) : sandbox.state === "paused" ? (
                "none while it is paused"
              ) : (
                <Until key="deadline" at={sandbox.deadline} />
              ),
            ],
            ["At the time limit", AT_END[sandbox.on_timeout] ?? sandbox.on_timeout],
            ["Reason", reasonText(sandbox.reason) || "–"],
            ["Processors", sandbox.cpu_count],
            ["Memory", mebibytes(sandbox.memory_mib)],
            ["Disk", mebibytes(sandbox.disk_mib)],
            ...((sandbox.volumes?.length ?? 0) > 0
              ? ([["Volumes", <Volumes key="volumes" mounts={sandbox.volumes ?? []} />]] as [string, ReactNode][])
              : []),
            ["Resumes on traffic", sandbox.auto_resume ? "yes" : "no"],
            ["Run time", used === undefined ? "–" : duration(used.running_seconds * 1000)],
            ["Cost", used === undefined ? "–" : money(used.cost, used.currency)],
          ]}
        />
        {!sandbox.ended_at && <OpenInEditor id={sandbox.id} />}
        {metadata.length > 0 && (
          <ul aria-label="Metadata" className="flex flex-wrap gap-2 border-t border-line px-4 py-3">
            {metadata.map(([name, value]) => (
              <li key={name} className="max-w-full truncate rounded bg-raised px-2 py-0.5 font-mono text-xs">
                {plainText(name)}={plainText(value)}
              </li>
            ))}
          </ul>
        )}
      </Card>
      <Card title="Processor" actions={<span className="text-dim">{last && `${last.cpuUsedPct.toFixed(1)} %`}</span>}>
        {sandbox.state !== "running" ? (
          <Empty title="Measured while it runs" />
        ) : (
          <Suspense fallback={<Loading what="Measuring" />}>
            <Chart
              label="Processor use in percent"
              times={times}
              top={100}
              unit=" %"
              series={[{ name: "CPU", values: series.map((sample) => sample.cpuUsedPct) }]}
            />
          </Suspense>
        )}
      </Card>
      <Card
        title="Memory"
        actions={<span className="text-dim">{last && `${bytes(last.memUsed)} of ${bytes(last.memTotal)}`}</span>}
      >
        {sandbox.state !== "running" ? (
          <Empty title="Measured while it runs" />
        ) : (
          <Suspense fallback={<Loading what="Measuring" />}>
            <Chart
              label="Memory use"
              times={times}
              format={bytes}
              series={[{ name: "Memory", values: series.map((sample) => sample.memUsed) }]}
            />
          </Suspense>
        )}
      </Card>
      <Ports sandbox={sandbox} />
    </div>
  );
}
