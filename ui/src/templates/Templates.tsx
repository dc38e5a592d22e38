import { useMemo } from "react";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Box, Layers, Plus } from "lucide-react";
import { whyNot } from "../api/session";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { Empty, Loaded } from "../ui/feedback";
import { TextField } from "../ui/fields";
import { mebibytes, plainText } from "../ui/format";
import { Card, Cell, Page, Table } from "../ui/layout";
import { ReadOnly } from "../ui/ReadOnly";
import { Ago } from "../ui/time";
import { useTyped } from "../ui/typed";
import { BuildBadge } from "./BuildBadge";
import { useTemplates, whyNotUse, type Template } from "./templates";

function Tags({ tags }: { tags: string[] }) {
  if (tags.length === 0) return <span className="text-dim">–</span>;
  return (
    <span className="flex flex-wrap gap-1">
      {tags.slice(0, 3).map((tag) => (
        <Badge key={tag}>{plainText(tag)}</Badge>
      ))}
      {tags.length > 3 && <span className="text-xs text-dim">+{tags.length - 3}</span>}
    </span>
  );
}

function Name({ template }: { template: Template }) {
  return (
    <span className="flex flex-wrap items-center gap-2">
      <Link
        to="/templates/$template"
        params={{ template: template.name === "new" ? template.id : template.name }}
        className="font-medium break-all text-accent underline"
      >
        {plainText(template.name)}
      </Link>
      {template.is_default && <Badge tone="info">default</Badge>}
    </span>
  );
}

/** When it was last built. A build that failed after one that is ready is told, because the list says "ready". */
function LastBuild({ template }: { template: Template }) {
  const last = template.last_build;
  if (last === null || last === undefined)
    return template.updated_at ? <Ago at={template.updated_at} /> : <span className="text-dim">–</span>;
  return (
    <span className="flex flex-wrap items-center gap-x-2 gap-y-1">
      <Ago at={last.ended_at ?? last.started_at ?? last.created_at} />
      {last.state !== template.state && (
        <Link
          to="/templates/$template/builds/$build"
          params={{ template: template.name, build: last.id }}
          title="The newest build"
        >
          <BuildBadge state={last.state} />
        </Link>
      )}
    </span>
  );
}

function Use({ template }: { template: Template }) {
  const navigate = useNavigate();
  return (
    <Button
      why={whyNotUse(template)}
      onClick={() => void navigate({ to: "/sandboxes", search: { create: true, template: template.name } })}
      icon={<Box aria-hidden className="size-4" />}
    >
      <span className="max-sm:sr-only">
        Create sandbox<span className="sr-only"> from {plainText(template.name)}</span>
      </span>
    </Button>
  );
}

function List({ templates, label }: { templates: Template[]; label: string }) {
  return (
    <Table
      label={label}
      head={[
        "Name",
        { wide: "State" },
        { wide: "Tags" },
        { wide: "Sandbox size" },
        { wide: "Last build" },
        <span key="actions" className="sr-only">
          Actions
        </span>,
      ]}
    >
      {templates.map((template) => (
        <tr key={template.name} className="hover:bg-raised/60">
          <Cell>
            <Name template={template} />
            {template.summary && <p className="mt-0.5 max-w-md text-xs text-dim">{plainText(template.summary)}</p>}
            <span className="mt-1 flex flex-wrap items-center gap-2 text-xs text-dim sm:hidden">
              <BuildBadge state={template.state} />
              <LastBuild template={template} />
            </span>
          </Cell>
          <Cell wide>
            <BuildBadge state={template.state} />
          </Cell>
          <Cell wide>
            <Tags tags={template.kind === "project" ? template.tags : []} />
          </Cell>
          <Cell wide className="whitespace-nowrap">
            {template.cpu_count} CPU, {mebibytes(template.memory_mib)}
          </Cell>
          <Cell wide className="whitespace-nowrap text-dim">
            <LastBuild template={template} />
          </Cell>
          <Cell className="text-right">
            <Use template={template} />
          </Cell>
        </tr>
      ))}
    </Table>
  );
}

function NewButton() {
  const navigate = useNavigate();
  return (
    <Button
      tone="primary"
      why={whyNot("build templates")}
      onClick={() => void navigate({ to: "/templates/new" })}
      icon={<Plus aria-hidden className="size-4" />}
    >
      New template
    </Button>
  );
}

const FILTER_FROM = 6;

export function Templates() {
  const { q = "" } = useSearch({ from: "/shell/templates" });
  const navigate = useNavigate({ from: "/templates" });
  const query = useTemplates();
  const [typed, setTyped] = useTyped(
    q,
    (text) => void navigate({ search: text === "" ? {} : { q: text }, replace: true }),
  );
  const words = useMemo(() => typed.toLowerCase().split(/\s+/).filter(Boolean), [typed]);
  const matches = (one: Template) =>
    words.every((word) =>
      `${one.name} ${one.tags.join(" ")} ${one.state} ${one.summary ?? ""}`.toLowerCase().includes(word),
    );
  return (
    <Page title="Templates" actions={<NewButton />}>
      <ReadOnly why={whyNot("build or delete templates")} />
      <Loaded query={query} what="Loading templates">
        {(all) => {
          const found = all.filter(matches);
          const own = found.filter(({ kind }) => kind === "project");
          const shared = found.filter(({ kind }) => kind !== "project");
          return (
            <>
              {(all.length >= FILTER_FROM || words.length > 0) && (
                <div className="sm:max-w-sm">
                  <TextField
                    label="Filter"
                    hideLabel
                    type="search"
                    placeholder="Filter by name, tag, state"
                    value={typed}
                    onChange={(event) => setTyped(event.target.value)}
                  />
                </div>
              )}
              {found.length === 0 && (
                <Card>
                  <Empty title="No template matches the filter" />
                </Card>
              )}
              {(own.length > 0 || words.length === 0) && (
                <Card title="This project">
                  {own.length === 0 ? (
                    <Empty icon={<Layers aria-hidden className="size-7" />} title="No templates of this project yet">
                      <p>
                        A template is what a sandbox starts from: files, tools and a service that already runs. Build
                        one from a Dockerfile, so that sandboxes need not install anything.
                      </p>
                      <NewButton />
                    </Empty>
                  ) : (
                    <List label="Templates of this project" templates={own} />
                  )}
                </Card>
              )}
              {shared.length > 0 && (
                <Card title="Server and catalogue">
                  <List label="Templates of the server" templates={shared} />
                </Card>
              )}
            </>
          );
        }}
      </Loaded>
    </Page>
  );
}
