// What the form for a new sandbox holds, and the request and the programs that it stands for.
import type { Schemas } from "../api/client";
import { curl, type Recipe } from "../ui/CopyAs";
import { mountProblem, type NewMount } from "../volumes/volumes";
import { parsePairs } from "./pairs";

export type NewSandbox = Schemas["NewSandbox"];

export const UNITS = { m: 60, h: 3600 } as const;

export interface Draft {
  name: string;
  /** Empty for the default. */
  template: string;
  agent: string;
  amount: string;
  unit: keyof typeof UNITS;
  atEnd: string;
  network: string;
  autoResume: boolean;
  env: string;
  metadata: string;
  cpus: string;
  memoryMib?: number;
  diskMib?: number;
  mounts: NewMount[];
}

/** Where a volume goes if nobody says where. */
export function mountPath(name: string, taken: NewMount[]): string {
  const path = taken.length === 0 ? "/data" : `/mnt/${name}`;
  return taken.some((mount) => mount.path === path) ? "" : path;
}

export function blankDraft(template = "", volume?: string): Draft {
  return {
    name: "",
    template,
    agent: "",
    amount: "1",
    unit: "h",
    atEnd: "",
    network: "",
    autoResume: false,
    env: "",
    metadata: "",
    cpus: "",
    mounts: volume === undefined ? [] : [{ name: volume, path: mountPath(volume, []), read_only: false }],
  };
}

/** The request; throws an error for people if the draft is not one. */
export function toNewSandbox(draft: Draft): NewSandbox {
  const mounts = draft.mounts.filter((mount) => mount.name !== "");
  const problem = mountProblem(mounts);
  if (problem !== undefined) throw new Error(problem);
  return {
    ...(draft.template === "" ? {} : { template: draft.template }),
    ...(draft.agent === "" ? {} : { agent_id: draft.agent }),
    timeout_s: Math.max(1, Math.round(Number(draft.amount) * UNITS[draft.unit])),
    ...(draft.atEnd === "" ? {} : { on_timeout: draft.atEnd as NewSandbox["on_timeout"] }),
    ...(draft.network === "" ? {} : { network: { base: draft.network } }),
    ...(draft.autoResume ? { auto_resume: true } : {}),
    ...(draft.cpus === "" ? {} : { cpu_count: Number(draft.cpus) }),
    ...(draft.memoryMib === undefined ? {} : { memory_mib: draft.memoryMib }),
    ...(draft.diskMib === undefined ? {} : { disk_mib: draft.diskMib }),
    ...(mounts.length === 0 ? {} : { volumes: mounts }),
    ...(draft.env.trim() === "" ? {} : { env: parsePairs(draft.env) }),
    metadata: {
      ...parsePairs(draft.metadata),
      ...(draft.name.trim() === "" ? {} : { name: draft.name.trim() }),
    },
  };
}

/** The same by E2B's programs, as far as they can say it, and by our API. */
export function recipeOf(draft: Draft): Recipe {
  let body: NewSandbox = {};
  try {
    body = toNewSandbox(draft);
  } catch {
    // The form says what is wrong when it is sent.
  }
  const seconds = body.timeout_s ?? 3600;
  const mounts = body.volumes ?? [];
  const python = [
    ...(draft.template === "" ? [] : [JSON.stringify(draft.template)]),
    `timeout=${seconds}`,
    ...(mounts.length === 0
      ? []
      : [
          `volume_mounts={${mounts.map(({ path, name }) => `${JSON.stringify(path)}: ${JSON.stringify(name)}`).join(", ")}}`,
        ]),
  ];
  const options = [
    `timeoutMs: ${seconds * 1000}`,
    ...(mounts.length === 0
      ? []
      : [
          `volumeMounts: { ${mounts.map(({ path, name }) => `${JSON.stringify(path)}: ${JSON.stringify(name)}`).join(", ")} }`,
        ]),
  ];
  const js = [...(draft.template === "" ? [] : [JSON.stringify(draft.template)]), `{ ${options.join(", ")} }`];
  return {
    cli: `e2b sandbox create ${draft.template === "" ? "base" : draft.template}`,
    python: `from e2b import Sandbox\nsandbox = Sandbox.create(${python.join(", ")})`,
    js: `import { Sandbox } from 'e2b'\nconst sandbox = await Sandbox.create(${js.join(", ")})`,
    curl: curl("POST", "/api/v1/sandboxes", body),
  };
}
