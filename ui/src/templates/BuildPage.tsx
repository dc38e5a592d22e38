// One build: its steps while they run, and why it failed.
import { useState } from "react";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { Ban, Box, CircleAlert, Pencil } from "lucide-react";
import { whyNot } from "../api/session";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Confirm } from "../ui/Dialog";
import { Empty, Loaded, Loading } from "../ui/feedback";
import { duration, mebibytes, moment, plainText } from "../ui/format";
import { Card, Facts, Page } from "../ui/layout";
import { ReadOnly } from "../ui/ReadOnly";
import { Since } from "../ui/time";
import { BuildBadge } from "./BuildBadge";
import { BuildSteps } from "./BuildSteps";
import { toSteps } from "./buildLog";
import { draftNow } from "./draft";
import { cancelBuild, startFrom, useBuild, useBuildLog, type Build } from "./templates";
import { isOver } from "./words";

/** The rest is the end of the output, which the step itself shows. */
const firstLine = (message: string) => plainText(message.split("\n", 1)[0] ?? "");

function Failure({ build }: { build: Build }) {
  if (!build.failure) return null;
  const { message, step, line } = build.failure;
  return (
    <div role="alert" className="flex gap-3 rounded-lg border border-bad/40 bg-bad-soft p-4">
      <CircleAlert aria-hidden className="mt-0.5 size-4 shrink-0 text-bad" />
      <div className="min-w-0 space-y-1">
        <p className="font-medium text-bad">
          {!step
            ? "The build did not finish."
            : /^\d+$/.test(step)
              ? `Step ${step} failed${line ? `, line ${line} of the Dockerfile` : ""}.`
              : step === "base"
                ? "The base could not be prepared."
                : "The template could not be finished."}
        </p>
        <p className="font-mono text-xs break-words whitespace-pre-wrap text-ink">{firstLine(message)}</p>
      </div>
    </div>
  );
}

function Log({ build }: { build: Build }) {
  const { lines, trouble, complete } = useBuildLog(build);
  const steps = toSteps(lines, { state: build.state, endedAt: build.ended_at, failedStep: build.failure?.step });
  return (
    <Card
      title="Steps"
      actions={
        trouble === undefined ? (
          !isOver(build.state) && <span className="text-xs text-dim">Live</span>
        ) : (
          <span role="status" className="text-xs text-warn">
            {trouble}
          </span>
        )
      }
    >
      {steps.length > 0 ? (
        <BuildSteps steps={steps} />
      ) : !complete && !isOver(build.state) ? (
        <Loading what={build.state === "waiting" ? "Waiting for files" : "Waiting for the first step"} />
      ) : !complete ? (
        <Loading what="Loading the log" />
      ) : (
        <Empty title="The build wrote nothing" />
      )}
    </Card>
  );
}

export function BuildPage() {
  const { template, build: id } = useParams({ from: "/shell/templates/$template/builds/$build" });
  const navigate = useNavigate();
  const query = useBuild(id);
  const [cancelling, setCancelling] = useState(false);
  const build = query.data;
  const path = `/api/v1/template-builds/${id}`;
  return (
    <Page
      name={build === undefined ? "Build" : `Build of ${build.template}`}
      title={
        <span className="flex min-w-0 flex-wrap items-center gap-x-2 gap-y-1">
          <Link to="/templates" className="text-base font-normal text-dim hover:underline">
            Templates /
          </Link>
          <Link
            to="/templates/$template"
            params={{ template }}
            className="text-base font-normal break-all text-dim hover:underline"
          >
            {plainText(build?.template ?? template)} /
          </Link>
          <span>Build</span>
          {build !== undefined && <BuildBadge state={build.state} />}
        </span>
      }
      actions={
        build !== undefined && (
          <>
            {!isOver(build.state) && (
              <Button
                why={whyNot("cancel builds")}
                onClick={() => setCancelling(true)}
                icon={<Ban aria-hidden className="size-4" />}
              >
                Cancel build
              </Button>
            )}
            {build.state === "error" && (
              <Button
                tone="primary"
                why={whyNot("build templates")}
                onClick={() => {
                  if (draftNow().name !== build.template) startFrom({ ...build, name: build.template });
                  void navigate({
                    to: "/templates/new",
                    search: build.failure?.line ? { line: build.failure.line } : {},
                  });
                }}
                icon={<Pencil aria-hidden className="size-4" />}
              >
                Edit and build again
              </Button>
            )}
            {build.state === "ready" && (
              <Button
                tone="primary"
                why={whyNot("create sandboxes")}
                onClick={() => void navigate({ to: "/sandboxes", search: { create: true, template: build.template } })}
                icon={<Box aria-hidden className="size-4" />}
              >
                Create sandbox
              </Button>
            )}
            <CopyAs label="Copy a command that shows this build" recipe={{ curl: curl("GET", path) }} />
          </>
        )
      }
    >
      <ReadOnly why={whyNot("cancel or repeat builds")} />
      <Loaded query={query} what="Loading the build">
        {(shown) => (
          <>
            <Failure build={shown} />
            <Card>
              <Facts
                facts={[
                  ["Started", moment(shown.started_at ?? shown.created_at)],
                  [
                    !shown.ended_at ? "Running for" : "Took",
                    !shown.ended_at ? (
                      <Since key="since" at={shown.started_at ?? shown.created_at} />
                    ) : (
                      duration(Date.parse(shown.ended_at) - Date.parse(shown.started_at ?? shown.created_at))
                    ),
                  ],
                  [
                    "Tags",
                    shown.state === "error" || shown.tags.length === 0 ? (
                      "–"
                    ) : (
                      <span key="tags" className="flex flex-wrap gap-1">
                        {shown.tags.map((tag) => (
                          <Badge key={tag}>{plainText(tag)}</Badge>
                        ))}
                      </span>
                    ),
                  ],
                  ["From", plainText(shown.from ?? "–")],
                  ["Processors", shown.cpu_count],
                  ["Memory", mebibytes(shown.memory_mib)],
                ]}
              />
            </Card>
            <Log key={shown.id} build={shown} />
            <Confirm
              open={cancelling}
              onClose={() => setCancelling(false)}
              title="Cancel this build?"
              action="Cancel build"
              danger
              onConfirm={() => cancelBuild(shown).then(() => query.refetch())}
            >
              The step that runs is stopped. Finished steps stay cached, so the next build continues after them. The
              template keeps its earlier builds.
            </Confirm>
          </>
        )}
      </Loaded>
    </Page>
  );
}
