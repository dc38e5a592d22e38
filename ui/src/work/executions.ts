// What ran in the sandbox of an attempt, apart from the server's own git commands.
import { useQuery } from "@tanstack/react-query";
import { api, take, type Schemas } from "../api/client";

export type Execution = Schemas["Execution"];

export function useExecutions(sandbox: string | null | undefined) {
  return useQuery({
    queryKey: ["executions", "of-sandbox", sandbox],
    queryFn: () =>
      take(
        api.GET("/api/v1/sandboxes/{id}/executions", {
          params: { path: { id: sandbox ?? "" }, query: { limit: 200 } },
        }),
      ),
    enabled: Boolean(sandbox),
  });
}

const firstWord = (command: string) => command.trim().split(/\s+/)[0] ?? "";

/** The turns of an agent, the oldest first, known by the program of the newest one. */
export function turnsOf(executions: Execution[], newest: string | null | undefined): Execution[] {
  const known = executions.find(({ id }) => id === newest);
  if (known === undefined) return [];
  const program = firstWord(known.command);
  return executions
    .filter((one) => firstWord(one.command) === program && one.started_at <= known.started_at)
    .sort((a, b) => a.started_at.localeCompare(b.started_at));
}

/** How the server runs a check. */
const SHELL = "/bin/bash -l -c ";

/** The runs of a check, the oldest first. */
export function checksOf(executions: Execution[], command: string | null | undefined): Execution[] {
  const wanted = (command ?? "").trim();
  return executions
    .filter((one) => wanted !== "" && one.command.trim() === `${SHELL}${wanted}`)
    .sort((a, b) => a.started_at.localeCompare(b.started_at));
}

/** Whether the server ran it for itself: git around an agent's work. People did not, and their failures are no trouble. */
export function isPlumbing({ command, source, actor }: Pick<Execution, "command" | "source" | "actor">): boolean {
  return source === "api" && !actor && /^git (-C|-c) /.test(command);
}
