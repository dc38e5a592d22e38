// For operators: every project, its quotas, and every sandbox that is alive.
import { useState, type FormEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Plus } from "lucide-react";
import { operatorApi, take, type Schemas } from "../api/client";
import { useSession } from "../api/session";
import { visitProject } from "../api/signIn";
import { nameOf } from "../sandbox/naming";
import { Quotas } from "../settings/Quotas";
import { useProjects } from "../shell/ProjectSwitcher";
import { StateBadge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { Dialog } from "../ui/Dialog";
import { Empty, ErrorBox, Loaded, toastError } from "../ui/feedback";
import { TextField } from "../ui/fields";
import { moment, money } from "../ui/format";
import { Card, Cell, Page, Table } from "../ui/layout";
import { Ago } from "../ui/time";

type Project = Schemas["Project"];

function NewProject({ onClose }: { onClose: () => void }) {
  const queries = useQueryClient();
  const [name, setName] = useState("");
  const make = useMutation({
    mutationFn: () => take(operatorApi.POST("/api/v1/projects", { body: { name } })),
    onSuccess: () => {
      void queries.invalidateQueries({ queryKey: ["projects"] });
      onClose();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate();
  };
  return (
    <Dialog open onClose={onClose} title="New project">
      <form onSubmit={submit} className="space-y-4">
        <TextField label="Name" required autoFocus value={name} onChange={(event) => setName(event.target.value)} />
        {make.error !== null && <ErrorBox error={make.error} />}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={make.isPending}>
            Create
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

export function Projects() {
  const operating = useSession()?.operating === true;
  const navigate = useNavigate();
  const projects = useProjects(operating);
  const [making, setMaking] = useState(false);
  const [limiting, setLimiting] = useState<Project>();
  const sandboxes = useQuery({
    queryKey: ["admin-sandboxes"],
    queryFn: () => take(operatorApi.GET("/api/v1/admin/sandboxes", { params: { query: { limit: 200 } } })),
    enabled: operating,
    refetchInterval: 5000,
  });
  const usage = useQuery({
    queryKey: ["admin-usage"],
    queryFn: () =>
      take(operatorApi.GET("/api/v1/admin/usage", { params: { query: { group_by: "project", limit: 200 } } })),
    enabled: operating,
    refetchInterval: 30_000,
  });
  if (!operating) return <Empty title="Projects are for operators">Sign in with the operator's key to see them.</Empty>;
  const visit = async (project: Project) => {
    try {
      await visitProject(project.id, project.name);
      await navigate({ to: "/sandboxes" });
    } catch (error) {
      toastError(error);
    }
  };
  const count = (project: string) => sandboxes.data?.items.filter((one) => one.project_id === project).length ?? 0;
  const cost = (project: string) => {
    const spent = usage.data?.items.find((one) => one.project_id === project);
    return spent === undefined ? "–" : money(spent.total_cost ?? spent.cost, spent.currency);
  };
  const nameOfProject = (id: string) => projects.data?.items.find((one) => one.id === id)?.name ?? id;
  return (
    <Page
      title="Projects"
      actions={
        <Button tone="primary" onClick={() => setMaking(true)} icon={<Plus aria-hidden className="size-4" />}>
          New project
        </Button>
      }
    >
      <Card>
        <Loaded query={projects}>
          {({ items }) => (
            <Table label="Projects" head={["Name", "Live sandboxes", "Spent", "Created", ""]}>
              {items.map((project) => (
                <tr key={project.id}>
                  <Cell>
                    <span className="block font-medium">{project.name}</span>
                    <span className="font-mono text-xs text-dim">{project.id}</span>
                  </Cell>
                  <Cell>{count(project.id)}</Cell>
                  <Cell>{cost(project.id)}</Cell>
                  <Cell className="whitespace-nowrap text-dim">{moment(project.created_at)}</Cell>
                  <Cell>
                    <div className="flex justify-end gap-2">
                      <Button onClick={() => setLimiting(project)}>Quotas</Button>
                      <Button tone="primary" onClick={() => void visit(project)}>
                        Open
                      </Button>
                    </div>
                  </Cell>
                </tr>
              ))}
            </Table>
          )}
        </Loaded>
      </Card>
      <Card title="Live sandboxes">
        <Loaded query={sandboxes}>
          {({ items, next }) =>
            items.length === 0 ? (
              <Empty title="No live sandboxes" />
            ) : (
              <>
                <Table label="Live sandboxes of all projects" head={["Sandbox", "Project", "State", "Age"]}>
                  {items.map(({ project_id, sandbox }) => (
                    <tr key={sandbox.id}>
                      <Cell>
                        <span className="block font-medium">{nameOf(sandbox)}</span>
                        <span className="font-mono text-xs text-dim">{sandbox.id}</span>
                      </Cell>
                      <Cell>{nameOfProject(project_id)}</Cell>
                      <Cell>
                        <StateBadge state={sandbox.state} />
                      </Cell>
                      <Cell className="text-dim">
                        <Ago at={sandbox.created_at} />
                      </Cell>
                    </tr>
                  ))}
                </Table>
                {next && <p className="border-t border-line px-4 py-2 text-dim">The first 200 are shown.</p>}
              </>
            )
          }
        </Loaded>
      </Card>
      {making && <NewProject onClose={() => setMaking(false)} />}
      {limiting !== undefined && (
        <Dialog open onClose={() => setLimiting(undefined)} title={`Quotas of ${limiting.name}`} wide>
          <Quotas project={limiting.id} />
        </Dialog>
      )}
    </Page>
  );
}
