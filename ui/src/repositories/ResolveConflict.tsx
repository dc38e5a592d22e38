// The way out of a conflict: the agent of the task merges the base into its branch, in its next attempt.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Sparkles } from "lucide-react";
import { toast } from "sonner";
import { api, take, type Schemas } from "../api/client";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { toastError } from "../ui/feedback";
import { conflictPrompt, useMergeability } from "./Merge";

type Pull = Schemas["Pull"];

export function ResolveConflict({
  task,
  repository,
  pull,
  working,
}: {
  task: string;
  repository: string;
  pull: Pull;
  working: boolean;
}) {
  const queries = useQueryClient();
  const { data } = useMergeability(repository, pull);
  const ask = useMutation({
    mutationFn: () =>
      take(
        api.POST("/api/v1/tasks/{task}/messages", {
          params: { path: { task } },
          body: { body: conflictPrompt(pull, data?.paths ?? []), start: true },
        }),
      ),
    onSuccess: async () => {
      toast.success("An attempt starts that resolves the conflict");
      await queries.invalidateQueries({ queryKey: ["tasks"] });
    },
    onError: toastError,
  });
  return (
    <Button
      tone="primary"
      disabled={!may("write")}
      why={working ? "The agent is at work; it can be asked when it is done" : undefined}
      busy={ask.isPending}
      onClick={() => ask.mutate()}
      icon={<Sparkles aria-hidden className="size-4" />}
    >
      Let the agent resolve it
    </Button>
  );
}
