import { useState, type ReactNode } from "react";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { useQueryClient } from "@tanstack/react-query";
import { Box, Hammer, Trash2 } from "lucide-react";
import { toast } from "sonner";
import { whyNot } from "../api/session";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { Confirm } from "../ui/Dialog";
import { Empty, Loaded } from "../ui/feedback";
import { bytes, duration, mebibytes, moment, plainText } from "../ui/format";
import { Card, Cell, Facts, Page, Table } from "../ui/layout";
import { ReadOnly } from "../ui/ReadOnly";
import { Snippets } from "../ui/Snippets";
import { Ago } from "../ui/time";
import { BuildBadge } from "./BuildBadge";
import { draftNow } from "./draft";
import {
  deleteTemplate,
  startFrom,
  useBuilds,
  useSnippets,
  useTemplate,
  whyNotUse,
  type Build,
  type Template,
} from "./templates";

function Builds({ template }: { template: Template }) {
  const query = useBuilds(template);
  const took = ({ started_at, created_at, ended_at }: Build) =>
    ended_at ? duration(Date.parse(ended_at) - Date.parse(started_at ?? created_at)) : "–";
  return (
    <Loaded query={query} what="Loading builds">
      {({ items, next }) =>
        items.length === 0 ? (
          <Empty title="No builds">Builds without a tag are deleted after some days.</Empty>
        ) : (
          <>
            <Table label="Builds" head={["Build", "State", { wide: "Tags" }, { wide: "Took" }]}>
              {items.map((build) => (
                <tr key={build.id} className="hover:bg-raised/60">
                  <Cell className="whitespace-nowrap">
                    <Link
                      to="/templates/$template/builds/$build"
                      params={{ template: template.name, build: build.id }}
                      className="font-medium text-accent underline"
                    >
                      <Ago at={build.created_at} />
                    </Link>
                  </Cell>
                  <Cell>
                    <BuildBadge state={build.state} />
                    {build.failure && (
                      <p className="mt-1 line-clamp-2 max-w-xl font-mono text-xs break-words text-dim">
                        {plainText(build.failure.message)}
                      </p>
                    )}
                  </Cell>
                  <Cell wide>
                    <span className="flex flex-wrap gap-1">
                      {(build.state === "error" ? [] : build.tags).map((tag) => (
                        <Badge key={tag}>{plainText(tag)}</Badge>
                      ))}
                    </span>
                  </Cell>
                  <Cell wide className="whitespace-nowrap text-dim">
                    {took(build)}
                  </Cell>
                </tr>
              ))}
            </Table>
            {next && (
              <p className="border-t border-line px-4 py-2 text-xs text-dim">The newest {items.length} are shown.</p>
            )}
          </>
        )
      }
    </Loaded>
  );
}

export function TemplatePage() {
  const { template: name } = useParams({ from: "/shell/templates/$template" });
  const navigate = useNavigate();
  const queries = useQueryClient();
  const query = useTemplate(name);
  const snippets = useSnippets(name);
  const [deleting, setDeleting] = useState(false);
  const template = query.data;
  const own = template?.kind === "project";
  const again = () => {
    if (template !== undefined && draftNow().name !== template.name) startFrom(template);
    void navigate({ to: "/templates/new" });
  };
  return (
    <Page
      name={name}
      title={
        <span className="flex min-w-0 flex-wrap items-center gap-x-2 gap-y-1">
          <Link to="/templates" className="text-base font-normal text-dim hover:underline">
            Templates /
          </Link>
          <span className="break-all">{plainText(name)}</span>
          {template !== undefined && <BuildBadge state={template.state} />}
        </span>
      }
      actions={
        template !== undefined && (
          <>
            {own && (
              <>
                <Button
                  why={whyNot("delete templates")}
                  onClick={() => setDeleting(true)}
                  icon={<Trash2 aria-hidden className="size-4" />}
                >
                  Delete
                </Button>
                <Button
                  why={whyNot("build templates")}
                  onClick={again}
                  icon={<Hammer aria-hidden className="size-4" />}
                >
                  Build again
                </Button>
              </>
            )}
            <Button
              tone="primary"
              why={whyNotUse(template)}
              onClick={() => void navigate({ to: "/sandboxes", search: { create: true, template: template.name } })}
              icon={<Box aria-hidden className="size-4" />}
            >
              Create sandbox
            </Button>
          </>
        )
      }
    >
      <ReadOnly why={own ? whyNot("build or delete templates") : undefined} />
      <Loaded query={query} what="Loading the template">
        {(shown) => (
          <>
            {shown.summary && <p className="text-dim">{plainText(shown.summary)}</p>}
            <Card title="Details">
              <Facts
                facts={[
                  ["Belongs to", shown.kind === "project" ? "this project" : "the server"],
                  ["User", plainText(shown.user ?? "–")],
                  ["Directory", plainText(shown.workdir ?? "the user's home")],
                  ["Processors", shown.cpu_count],
                  ["Memory", mebibytes(shown.memory_mib)],
                  ["Disk", mebibytes(shown.disk_mib)],
                  ...(shown.added_bytes === null || shown.added_bytes === undefined
                    ? []
                    : ([["Added by the last step", bytes(shown.added_bytes)]] as [string, string][])),
                  // The server counts nothing of what all projects share.
                  ...(shown.kind === "project"
                    ? ([
                        ["Sandboxes so far", shown.spawn_count],
                        ["Last used", shown.last_spawned_at ? <Ago key="used" at={shown.last_spawned_at} /> : "–"],
                        ["Created", shown.created_at ? moment(shown.created_at) : "–"],
                      ] as [string, ReactNode][])
                    : []),
                ]}
              />
              {shown.kind === "project" && shown.tags.length > 0 && (
                <div className="flex flex-wrap items-center gap-2 border-t border-line px-4 py-3">
                  <span className="text-xs text-dim">Tags</span>
                  {shown.tags.map((tag) => (
                    <Badge key={tag}>{plainText(tag)}</Badge>
                  ))}
                </div>
              )}
            </Card>
            {shown.kind === "project" && (
              <Card title="Builds">
                <Builds template={shown} />
              </Card>
            )}
            <Card title="Use it">
              <Snippets label="Use it" snippets={snippets} />
            </Card>
            <Confirm
              open={deleting}
              onClose={() => setDeleting(false)}
              title={`Delete the template ${shown.name}?`}
              action="Delete template"
              danger
              onConfirm={async () => {
                await deleteTemplate(shown);
                toast.success(`Template ${shown.name} deleted`);
                void navigate({ to: "/templates" });
                await queries.invalidateQueries({ queryKey: ["templates"] });
              }}
            >
              <ul className="list-disc space-y-1 pl-5">
                <li>Its builds are deleted with their tags and logs. This cannot be undone.</li>
                <li>Sandboxes that run from it keep running.</li>
                <li>Programs, agents and tasks that create sandboxes from {plainText(shown.name)} fail from now on.</li>
              </ul>
            </Confirm>
          </>
        )}
      </Loaded>
    </Page>
  );
}
