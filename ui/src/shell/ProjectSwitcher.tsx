// Which project is looked at. With an operator's key, any of them; with a project's own key, that one.
import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { DropdownMenu } from "radix-ui";
import { ChevronsUpDown } from "lucide-react";
import { operatorApi, take } from "../api/client";
import { useSession } from "../api/session";
import { visitProject } from "../api/signIn";
import { Button } from "../ui/Button";
import { toastError } from "../ui/feedback";

export function useProjects(enabled: boolean) {
  return useQuery({
    queryKey: ["projects"],
    queryFn: () => take(operatorApi.GET("/api/v1/projects", { params: { query: { limit: 200 } } })),
    enabled,
  });
}

export function ProjectSwitcher() {
  const session = useSession();
  const navigate = useNavigate();
  const operating = session?.operating === true;
  const projects = useProjects(operating);
  const name = session?.project?.projectName ?? "No project";
  if (!operating) return <span className="truncate border-l border-line pl-3 text-dim">{name}</span>;
  const visit = async (id: string, projectName: string) => {
    try {
      await visitProject(id, projectName);
      await navigate({ to: "/sandboxes" });
    } catch (error) {
      toastError(error);
    }
  };
  return (
    <DropdownMenu.Root>
      <DropdownMenu.Trigger asChild>
        <Button tone="ghost" className="min-w-0 shrink" aria-label={`Project: ${name}. Switch`}>
          <span className="truncate">{name}</span>
          <ChevronsUpDown aria-hidden className="size-3.5 shrink-0" />
        </Button>
      </DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content
          align="start"
          className="z-50 max-h-80 w-64 overflow-y-auto rounded-lg border border-line bg-surface p-1 shadow-lg"
        >
          {projects.data?.items.map((project) => (
            <DropdownMenu.Item
              key={project.id}
              onSelect={() => void visit(project.id, project.name)}
              className="truncate rounded-md px-2 py-1.5 outline-none data-[highlighted]:bg-raised"
            >
              {project.name}
            </DropdownMenu.Item>
          ))}
          <DropdownMenu.Separator className="my-1 h-px bg-line" />
          <DropdownMenu.Item
            onSelect={() => void navigate({ to: "/projects" })}
            className="rounded-md px-2 py-1.5 text-dim outline-none data-[highlighted]:bg-raised"
          >
            All projects
          </DropdownMenu.Item>
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}
