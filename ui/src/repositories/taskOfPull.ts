// The task that a pull request is for. Its text names one, which anybody can write, so the task itself has to agree.
import { useQuery } from "@tanstack/react-query";
import { api, take, type Schemas } from "../api/client";

const NAMED = /^\| Task \| `([0-9a-z]{26})`/m;

export const taskNamedIn = (body: string) => NAMED.exec(body)?.[1];

export function useTaskOfPull(repository: string, pull: Schemas["Pull"] | undefined) {
  const id = taskNamedIn(pull?.body ?? "");
  const { data } = useQuery({
    queryKey: ["tasks", "one", id],
    queryFn: () => take(api.GET("/api/v1/tasks/{task}", { params: { path: { task: id ?? "" } } })),
    enabled: id !== undefined,
    retry: false,
  });
  return data !== undefined && repository !== "" && data.branch === pull?.head ? data : undefined;
}
