// What a sandbox can start from, in the order in which people look for it.
import { useMemo } from "react";
import { useQuery } from "@tanstack/react-query";
import { api, take, type Schemas } from "../api/client";
import { span } from "../ui/format";
import { EMPTY_ROOT, useTemplates } from "./templates";

export interface Choice {
  name: string;
  note: string;
  isDefault?: boolean;
}

export interface Choices {
  heading: string;
  choices: Choice[];
}

export function choicesOf(
  templates: Schemas["Template"][],
  snapshots: Pick<Schemas["Snapshot"], "full_name" | "created_at">[],
  now: number,
): Choices[] {
  // An empty root is for builds alone.
  const usable = templates.filter(({ name, state }) => name !== EMPTY_ROOT && state === "ready");
  const of = (project: boolean) =>
    usable
      .filter(({ kind }) => (kind === "project") === project)
      .map(({ name, is_default, summary }) => ({
        name,
        isDefault: is_default,
        note: is_default ? "default" : (summary ?? "").slice(0, 40),
      }));
  const named = snapshots.flatMap(({ full_name, created_at }) =>
    full_name === null || full_name === undefined
      ? []
      : [{ name: full_name, note: `${span(now - Date.parse(created_at))} ago` }],
  );
  return [
    { heading: "This project", choices: of(true) },
    { heading: "Server", choices: of(false) },
    { heading: "Snapshots", choices: named },
  ].filter(({ choices }) => choices.length > 0);
}

export function useChoices() {
  const templates = useTemplates();
  const snapshots = useQuery({
    queryKey: ["snapshots", "all"],
    queryFn: () => take(api.GET("/api/v1/snapshots", { params: { query: { limit: 200 } } })),
  });
  const groups = useMemo(
    () => choicesOf(templates.data ?? [], snapshots.data?.items ?? [], Date.now()),
    [templates.data, snapshots.data],
  );
  return {
    groups,
    fallback: templates.data?.find(({ is_default }) => is_default)?.name,
    isPending: templates.isPending,
    error: templates.error,
  };
}
