// What the pages ask about templates and builds.
import { useEffect, useMemo, useRef, useState } from "react";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { api, ApiError, raw, take, type Schemas } from "../api/client";
import { whyNot } from "../api/session";
import { readEvents } from "../api/sse";
import { send } from "../api/send";
import { described } from "../ui/feedback";
import { curl, type Recipe } from "../ui/CopyAs";
import { parsePairs } from "../sandbox/pairs";
import type { LogLine } from "./buildLog";
import { isArchive, tarOf, type ContextFile } from "./context";
import { clearDraft, setDraft, type BuildDraft } from "./draft";
import { isOver } from "./words";

export type Template = Schemas["Template"];
export type Build = Schemas["TemplateBuild"];
export type NewBuild = Schemas["NewTemplateBuild"];

/** A page of the list is at most this long, and a project has a thousand at most, besides the server's. */
const AT_ONCE = 200;
const MOST_PAGES = 10;

async function allTemplates(): Promise<Template[]> {
  const found: Template[] = [];
  let cursor: string | undefined;
  for (let pages = 0; pages < MOST_PAGES; pages++) {
    const page = await take(api.GET("/api/v1/templates", { params: { query: { limit: AT_ONCE, cursor } } }));
    found.push(...page.items);
    if (!page.next) break;
    cursor = page.next;
  }
  return found;
}

/** The server's empty root: images are unpacked in it, and no sandbox can start from it. */
export const EMPTY_ROOT = "scratch";

/** Why no sandbox can be created from it with this key, as a sentence. */
export function whyNotUse({ name, kind, state }: Template): string | undefined {
  if (kind === "server" && name === EMPTY_ROOT) return "It is an empty root, for builds from images.";
  return state === "ready" ? whyNot("create sandboxes") : "No build of it is ready.";
}

export function useTemplates() {
  return useQuery({ queryKey: ["templates"], queryFn: allTemplates });
}

export function useTemplate(template: string) {
  return useQuery({
    queryKey: ["template", template],
    queryFn: () => take(api.GET("/api/v1/templates/{template}", { params: { path: { template } } })),
  });
}

export function useBuilds({ id }: Pick<Template, "id">) {
  return useQuery({
    queryKey: ["template", id, "builds"],
    queryFn: () => take(api.GET("/api/v1/template-builds", { params: { query: { template: id, limit: 50 } } })),
  });
}

/** Puts what the server knows of a template into the form. It keeps no Dockerfiles. */
export function startFrom({
  name,
  cpu_count,
  memory_mib,
  disk_mib,
}: Pick<Build, "cpu_count" | "memory_mib" | "disk_mib"> & { name: string }) {
  clearDraft();
  setDraft({ name, cpus: String(cpu_count), memoryMib: memory_mib, diskMib: disk_mib });
}

export function useBuild(build: string) {
  return useQuery({
    queryKey: ["template", "build", build],
    queryFn: () => take(api.GET("/api/v1/template-builds/{build}", { params: { path: { build } } })),
    // Events tell of its end; if one was missed, this tells it a moment later.
    refetchInterval: ({ state }) => (state.data !== undefined && isOver(state.data.state) ? false : 5000),
  });
}

export async function cancelBuild({ id }: Build) {
  await take(api.POST("/api/v1/template-builds/{build}/cancel", { params: { path: { build: id } } }));
}

export async function deleteTemplate({ id }: Template) {
  await take(api.DELETE("/api/v1/templates/{template}", { params: { path: { template: id } } }));
}

const GATHER_MS = 100;
const AGAIN_MS = 1500;

/** The log of a build, growing while it runs. A stream that breaks goes on after the last line. */
export function useBuildLog(build: Build): { lines: LogLine[]; trouble?: string; complete: boolean } {
  const [lines, setLines] = useState<LogLine[]>([]);
  const [trouble, setTrouble] = useState<string>();
  const [complete, setComplete] = useState(false);
  const { id } = build;
  const queries = useQueryClient();
  const fresh = useRef<LogLine[]>([]);
  useEffect(() => {
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let gather: ReturnType<typeof setTimeout> | undefined;
    let last: string | undefined;
    fresh.current = [];
    setLines([]);
    setComplete(false);
    const flush = () => {
      gather = undefined;
      const more = fresh.current;
      fresh.current = [];
      if (more.length > 0) setLines((all) => [...all, ...more]);
    };
    const follow = async () => {
      let ended = false;
      try {
        const headers: Record<string, string> = { accept: "text/event-stream" };
        if (last !== undefined) headers["last-event-id"] = last;
        const response = await raw(`/api/v1/template-builds/${encodeURIComponent(id)}/stream`, {
          headers,
          signal: stop.signal,
        });
        setTrouble(undefined);
        await readEvents(response, (event) => {
          if (event.id !== undefined) last = event.id;
          if (event.event === "end") {
            ended = true;
            queries.setQueryData(["template", "build", id], JSON.parse(event.data) as Build);
          }
          if (event.event !== "line") return;
          fresh.current.push(JSON.parse(event.data) as LogLine);
          gather ??= setTimeout(flush, GATHER_MS);
        });
        flush();
        if (ended) return setComplete(true);
      } catch (failed) {
        if (stop.signal.aborted) return;
        setTrouble(described(failed).title);
        if (failed instanceof ApiError && failed.status >= 400 && failed.status < 500 && failed.status !== 429)
          return setComplete(true);
      }
      if (!stop.signal.aborted) timer = setTimeout(() => void follow(), AGAIN_MS);
    };
    void follow();
    return () => {
      stop.abort();
      clearTimeout(timer);
      clearTimeout(gather);
    };
  }, [id, queries]);
  return { lines, trouble, complete };
}

/** The body of a build's request, without its files; throws an error for people if the draft is not one. */
export function toNewBuild(draft: BuildDraft): NewBuild {
  const args = parsePairs(draft.args);
  const secrets = draft.secrets.split(/[\s,]+/).filter(Boolean);
  return {
    name: draft.name,
    dockerfile: draft.dockerfile,
    ...(draft.tag.trim() === "" ? {} : { tags: [draft.tag.trim()] }),
    ...(draft.summary.trim() === "" ? {} : { summary: draft.summary.trim() }),
    ...(Object.keys(args).length === 0 ? {} : { args }),
    ...(draft.cpus === "" ? {} : { cpu_count: Number(draft.cpus) }),
    ...(draft.memoryMib === undefined ? {} : { memory_mib: draft.memoryMib }),
    ...(draft.diskMib === undefined ? {} : { disk_mib: draft.diskMib }),
    ...(draft.start.trim() === "" ? {} : { start_command: draft.start }),
    ...(draft.ready.trim() === "" ? {} : { ready_command: draft.ready }),
    ...(secrets.length === 0 ? {} : { secrets }),
    ...(draft.noCache ? { force: true } : {}),
  };
}

/** Sends the files, then the request. Files of an archive are sent as they are, others as a tar archive. */
export async function startBuild(
  draft: BuildDraft,
  files: ContextFile[],
  progress: (sent: number, total: number) => void,
): Promise<Schemas["RequestedTemplateBuild"]> {
  const body = toNewBuild(draft);
  if (files.length > 0) {
    const archive = isArchive(files) ? (files[0] as ContextFile).data : tarOf(files);
    const sent = (await send("POST", "/api/v1/template-files", archive, progress)) as Schemas["TemplateFiles"];
    body.context = sent.hash;
  }
  return take(api.POST("/api/v1/templates", { body }));
}

export function buildRecipe(draft: BuildDraft, withFiles: boolean): Recipe {
  let body: NewBuild = {};
  try {
    body = toNewBuild(draft);
  } catch {
    // The form says what is wrong when it is sent.
  }
  const named = { ...body, name: body.name || "my-app", dockerfile: body.dockerfile || "FROM debian:12\n" };
  if (!withFiles) return { curl: curl("POST", "/api/v1/templates", named) };
  const upload = `hash=$(tar c . | curl -sS -H "X-API-KEY: $COFFER_API_KEY" --data-binary @- \\\n  -H 'content-type: application/octet-stream' "$COFFER_URL/api/v1/template-files" | jq -r .hash)`;
  const request = curl("POST", "/api/v1/templates", { ...named, context: "HASH" }).replace('"HASH"', `"'"$hash"'"`);
  return { curl: `${upload}\n${request}` };
}

export function useSnippets(name: string): [string, string][] {
  return useMemo(
    () => [
      ["Python", `from e2b import Sandbox\n\nsandbox = Sandbox.create(${JSON.stringify(name)})`],
      ["JavaScript", `import { Sandbox } from 'e2b'\n\nconst sandbox = await Sandbox.create(${JSON.stringify(name)})`],
      ["curl", curl("POST", "/api/v1/sandboxes", { template: name })],
    ],
    [name],
  );
}
