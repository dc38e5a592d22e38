// A template from a Dockerfile: its text, the files that it copies, its size and what runs in it.
import { lazy, Suspense, useState, type FormEvent, type ReactNode } from "react";
import { useMutation, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Hammer } from "lucide-react";
import { api, ApiError, take } from "../api/client";
import { whyNot } from "../api/session";
import { Button } from "../ui/Button";
import { CopyAs } from "../ui/CopyAs";
import { ErrorBox, Loading } from "../ui/feedback";
import { CheckField, TextArea, TextField } from "../ui/fields";
import { bytes, mebibytes } from "../ui/format";
import { Card, Page } from "../ui/layout";
import { ReadOnly } from "../ui/ReadOnly";
import { SizeField } from "../ui/SizeField";
import { ContextPicker } from "./ContextPicker";
import { copiesFiles, EXAMPLE, refusedLine, templateNameProblem } from "./dockerfile";
import { clearDraft, setDraft, setFiles, useDraft } from "./draft";
import { SecretNames } from "./SecretNames";
import { buildRecipe, startBuild } from "./templates";

const DockerfileEditor = lazy(() =>
  import("./DockerfileEditor").then((module) => ({ default: module.DockerfileEditor })),
);

function Section({ title, open, children }: { title: ReactNode; open?: boolean; children: ReactNode }) {
  return (
    <details className="rounded-lg border border-line bg-surface" open={open}>
      <summary className="px-4 py-2.5 font-semibold">{title}</summary>
      <div className="border-t border-line p-4">{children}</div>
    </details>
  );
}

export function NewTemplate() {
  const { line } = useSearch({ from: "/shell/templates/new" });
  const navigate = useNavigate();
  const { draft, files } = useDraft();
  const host = useQuery({ queryKey: ["host"], queryFn: () => take(api.GET("/api/v1/host")), staleTime: 60_000 });
  const largest = host.data?.largest_sandbox;
  const [progress, setProgress] = useState<string>();
  const problem = templateNameProblem(draft.name);
  const why = whyNot("build templates");
  const needsFiles = copiesFiles(draft.dockerfile);

  const build = useMutation({
    mutationFn: () =>
      startBuild(draft, files, (sent, total) => setProgress(`Sending files: ${bytes(sent)} of ${bytes(total)}`)),
    onSettled: () => setProgress(undefined),
    onSuccess: (started) =>
      void navigate({
        to: "/templates/$template/builds/$build",
        params: { template: started.template, build: started.id },
      }),
  });
  const refused = build.error instanceof ApiError ? refusedLine(build.error.message) : undefined;
  const ready = why === undefined && problem === undefined && draft.name !== "" && draft.dockerfile.trim() !== "";
  const send = () => {
    if (ready && !build.isPending) build.mutate();
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    send();
  };
  return (
    <Page
      name="New template"
      title={
        <span className="flex min-w-0 flex-wrap items-baseline gap-x-2">
          <Link to="/templates" className="text-base font-normal text-dim hover:underline">
            Templates /
          </Link>
          New template
        </span>
      }
    >
      <ReadOnly why={why} />
      <form onSubmit={submit} className="grid items-start gap-4 lg:grid-cols-[minmax(0,3fr)_minmax(0,2fr)]">
        <Card
          title="Dockerfile"
          className="flex min-h-96 flex-col overflow-hidden lg:min-h-[60vh]"
          actions={
            draft.dockerfile.trim() === "" && (
              <Button onClick={() => setDraft({ dockerfile: EXAMPLE })}>Start from an example</Button>
            )
          }
        >
          <div className="min-h-0 flex-1">
            <Suspense fallback={<Loading what="Opening the editor" />}>
              <DockerfileEditor
                value={draft.dockerfile}
                onChange={(dockerfile) => setDraft({ dockerfile })}
                onSubmit={send}
                wrongLine={refused ?? line}
              />
            </Suspense>
          </div>
        </Card>
        <div className="space-y-4">
          <Card className="space-y-4 p-4">
            <div>
              <TextField
                label="Name"
                required
                placeholder="my-app"
                maxLength={128}
                value={draft.name}
                aria-invalid={problem !== undefined}
                onChange={(event) => setDraft({ name: event.target.value })}
                hint="Sandboxes are created from it by this name. A name that exists gets a new build."
              />
              <p role="status" className="text-xs text-bad">
                {problem}
              </p>
            </div>
            <TextField
              label="Tag"
              placeholder="default"
              maxLength={128}
              value={draft.tag}
              onChange={(event) => setDraft({ tag: event.target.value })}
              hint="Sandboxes without a tag start from default."
            />
            <TextField
              label="Summary"
              maxLength={500}
              placeholder="what it is for"
              value={draft.summary}
              onChange={(event) => setDraft({ summary: event.target.value })}
            />
          </Card>
          <Section title={`Files${files.length > 0 ? ` (${files.length})` : ""}`} open={needsFiles || files.length > 0}>
            <ContextPicker files={files} onChange={setFiles} needed={needsFiles} />
          </Section>
          <Section title="Size">
            <div className="grid gap-4 sm:grid-cols-3 lg:grid-cols-1">
              <TextField
                label="Processors"
                type="number"
                min="1"
                max={largest?.cpu_count}
                step="1"
                placeholder="default"
                value={draft.cpus}
                onChange={(event) => setDraft({ cpus: event.target.value })}
                hint={largest === undefined ? undefined : `Up to ${largest.cpu_count} on this host.`}
              />
              <SizeField
                label="Memory"
                least={128}
                most={largest?.memory_mib}
                placeholder="default"
                value={draft.memoryMib}
                onChange={(memoryMib) => setDraft({ memoryMib })}
                hint={largest === undefined ? undefined : `Up to ${mebibytes(largest.memory_mib)}.`}
              />
              <SizeField
                label="Disk"
                least={64}
                most={largest?.disk_mib}
                placeholder="default"
                value={draft.diskMib}
                onChange={(diskMib) => setDraft({ diskMib })}
                hint={largest === undefined ? undefined : `Up to ${mebibytes(largest.disk_mib)}.`}
              />
            </div>
            <p className="mt-3 text-xs text-dim">For the build, and for sandboxes that do not say otherwise.</p>
          </Section>
          <Section title="Service">
            <div className="space-y-4">
              <TextField
                label="Start command"
                className="font-mono"
                placeholder="npm start"
                value={draft.start}
                onChange={(event) => setDraft({ start: event.target.value })}
                hint="Runs in every sandbox of the template. Replaces CMD and ENTRYPOINT."
              />
              <TextField
                label="Ready command"
                className="font-mono"
                placeholder="curl -sf http://localhost:3000/"
                value={draft.ready}
                onChange={(event) => setDraft({ ready: event.target.value })}
                hint="The service is ready once this succeeds."
              />
            </div>
          </Section>
          <Section title="Arguments and secrets">
            <div className="space-y-4">
              <TextArea
                label="Build arguments"
                placeholder={"VERSION=1.2\nOTHER=value"}
                value={draft.args}
                onChange={(event) => setDraft({ args: event.target.value })}
                hint="Values for ARG, one per line. Use secrets for what is secret."
              />
              <SecretNames value={draft.secrets} onChange={(secrets) => setDraft({ secrets })} />
              <CheckField
                label="Build without the cache"
                checked={draft.noCache}
                onChange={(event) => setDraft({ noCache: event.target.checked })}
                hint="Runs every step again, also those whose inputs have not changed."
              />
            </div>
          </Section>
          {build.error !== null && <ErrorBox error={build.error} />}
          <div className="flex flex-wrap items-center justify-end gap-2">
            <span role="status" className="mr-auto text-dim">
              {progress}
            </span>
            <CopyAs recipe={buildRecipe(draft, needsFiles)} />
            <Button
              onClick={() => {
                clearDraft();
                build.reset();
              }}
              disabled={draft.dockerfile === "" && draft.name === "" && files.length === 0}
            >
              Clear
            </Button>
            <Button
              type="submit"
              tone="primary"
              why={why ?? (ready ? undefined : "It needs a Dockerfile and a name.")}
              busy={build.isPending}
              title="Ctrl+Enter"
              icon={<Hammer aria-hidden className="size-4" />}
            >
              Build
            </Button>
          </div>
        </div>
      </form>
    </Page>
  );
}
