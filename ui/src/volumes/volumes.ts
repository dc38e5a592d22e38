// What the pages ask about volumes, and what they work out from the answers.
import { useMemo } from "react";
import { useQueries, useQuery } from "@tanstack/react-query";
import { api, take, type Schemas } from "../api/client";
import { useSandboxes, type Sandbox } from "../api/sandboxes";
import { curl } from "../ui/CopyAs";

export type Volume = Schemas["Volume"];
export type VolumeDetail = Schemas["VolumeDetail"];
export type NewMount = Schemas["NewMount"];

export function useVolumes() {
  return useQuery({ queryKey: ["volumes"], queryFn: () => take(api.GET("/api/v1/volumes")) });
}

const detailOf = (id: string) => ({
  queryKey: ["volume", id],
  queryFn: () => take(api.GET("/api/v1/volumes/{volume}", { params: { path: { volume: id } } })),
});

export function useVolume(id: string) {
  // Files are written without an event that says so.
  return useQuery({ ...detailOf(id), refetchInterval: 10_000 });
}

/** A project may have a thousand volumes; the use of each is a question to its host. */
const MOST_MEASURED = 40;

/** Bytes in each volume by its id, for the first of them. Null means that its host does not answer. */
export function useVolumeBytes(volumes: Volume[]): Map<string, number | null> {
  return useQueries({
    queries: volumes.slice(0, MOST_MEASURED).map(({ id }) => ({ ...detailOf(id), staleTime: 15_000, retry: false })),
    combine: (answers) =>
      new Map(answers.flatMap(({ data }) => (data === undefined ? [] : [[data.id, data.used_bytes ?? null]]))),
  });
}

/** The sandboxes among those that mount each volume, by the volume's name. */
export function mountersOf(sandboxes: Sandbox[]): Map<string, Sandbox[]> {
  const found = new Map<string, Sandbox[]>();
  for (const sandbox of sandboxes) {
    for (const name of new Set(sandbox.volumes?.map((mount) => mount.name)))
      found.set(name, [...(found.get(name) ?? []), sandbox]);
  }
  return found;
}

export function useMounters() {
  const { sandboxes, isPending } = useSandboxes("live");
  return { mounters: useMemo(() => mountersOf(sandboxes), [sandboxes]), isPending };
}

/** What is wrong with the name of a new volume; undefined if nothing is. The server decides. */
export function nameProblem(name: string, taken: string[]): string | undefined {
  if (name === "") return undefined;
  if (!/^[A-Za-z0-9_-]+$/.test(name)) return "Use letters, digits, dashes and underscores.";
  if (name.length > 128) return "Use at most 128 characters.";
  return taken.includes(name) ? `The project has a volume ${name} already.` : undefined;
}

const CLOSED = ["/proc", "/sys", "/dev", "/run"];

/** What is wrong with the mounts of a new sandbox, as a sentence. The server decides; this spares people a refusal. */
export function mountProblem(mounts: NewMount[]): string | undefined {
  const paths: string[] = [];
  for (const { name, path } of mounts) {
    if (!path.startsWith("/") || path === "/") return `Mount ${name} at an absolute path, such as /data.`;
    if (path.split("/").some((part, at) => at > 0 && (part === "" || part === "." || part === "..")))
      return `The path ${path} of ${name} must have no empty parts, no "." and no "..".`;
    if (CLOSED.some((top) => path === top || path.startsWith(`${top}/`)))
      return `${name} cannot be mounted in ${CLOSED.join(", ")}.`;
    const other = paths.find((one) => one === path || one.startsWith(`${path}/`) || path.startsWith(`${one}/`));
    if (other !== undefined) return `${path} and ${other} are inside each other; use separate paths.`;
    paths.push(path);
  }
  return undefined;
}

/** How to mount a volume, in the languages that people use. Names are letters, digits, dashes and underscores. */
export function mountSnippets(name: string): [string, string][] {
  const body = { volumes: [{ name, path: "/data" }] };
  const kept = "still here after the sandbox ends";
  return [
    [
      "Python",
      `from e2b import Sandbox\n\nsandbox = Sandbox.create(volume_mounts={"/data": "${name}"})\nsandbox.files.write("/data/notes.txt", "${kept}")`,
    ],
    [
      "JavaScript",
      `import { Sandbox } from 'e2b'\n\nconst sandbox = await Sandbox.create({ volumeMounts: { '/data': '${name}' } })\nawait sandbox.files.write('/data/notes.txt', '${kept}')`,
    ],
    [
      "curl",
      `${curl("POST", "/api/v1/sandboxes", body)}\n\n# Add "read_only": true to the volume if the sandbox must not change it.`,
    ],
  ];
}
