// What the form of an agent holds as text, and the definition that it stands for.
import type { Schemas } from "../api/client";
import { parsePairs } from "../sandbox/pairs";
import { toLine, toWords } from "./words";

type Definition = Schemas["AgentDefinition"];
type Preset = Schemas["PresetInfo"];

export interface AgentDraft {
  name: string;
  preset: string;
  model: string;
  template: string;
  command: string;
  prompt: string;
  variable: string;
  secret: string;
  /** A key that was typed and is not stored yet. */
  key: string;
  env: string;
  directory: string;
  cpus: string;
  memory: string;
  minutes: string;
}

export const BLANK_AGENT: AgentDraft = {
  name: "",
  preset: "",
  model: "",
  template: "",
  command: "",
  prompt: "",
  variable: "",
  secret: "",
  key: "",
  env: "",
  directory: "",
  cpus: "",
  memory: "",
  minutes: "",
};

/** Values of an environment are never shown; a name without a value keeps the one that is stored. */
const KEPT = "";

export function toDraft(name: string, definition: Definition | undefined): AgentDraft {
  const [known] = Object.entries(definition?.secrets ?? {});
  const limits = definition?.limits ?? {};
  const text = (value: number | null | undefined) => (value === null || value === undefined ? "" : String(value));
  return {
    ...BLANK_AGENT,
    name,
    preset: definition?.preset ?? "",
    model: definition?.model ?? "",
    template: definition?.template ?? "",
    command: toLine(definition?.command ?? []),
    prompt: definition?.prompt ?? "",
    variable: known?.[0] ?? "",
    secret: known?.[1] ?? "",
    env: Object.keys(definition?.env ?? {})
      .map((one) => `${one}=${KEPT}`)
      .join("\n"),
    directory: definition?.working_directory ?? "",
    cpus: text(limits.cpu_count),
    memory: text(limits.memory_mib),
    minutes: text(limits.timeout_s ? limits.timeout_s / 60 : undefined),
  };
}

/** The variable for the agent's key: what was written, or the preset's usual one. */
export const variableOf = (draft: AgentDraft, preset: Preset | undefined) =>
  draft.variable || (preset?.usual_secret ?? "");

/** Throws if the environment has a line that is not NAME=value. `before` has what the form does not show. */
export function toDefinition(draft: AgentDraft, preset: Preset | undefined, before?: Definition): Definition {
  const name = variableOf(draft, preset);
  const [, ...others] = Object.entries(before?.secrets ?? {});
  const number = (text: string) => (text.trim() === "" ? null : Number(text));
  const minutes = number(draft.minutes);
  const stored = before?.env ?? {};
  const env = Object.fromEntries(
    Object.entries(parsePairs(draft.env)).map(([one, value]) => [one, value === KEPT && one in stored ? null : value]),
  );
  return {
    ...before,
    preset: draft.preset as Definition["preset"],
    model: draft.model || null,
    template: draft.template || null,
    command: draft.command.trim() === "" ? null : toWords(draft.command),
    prompt: draft.prompt.trim() === "" ? null : draft.prompt,
    working_directory: draft.directory || null,
    env: env,
    limits: {
      cpu_count: number(draft.cpus),
      memory_mib: number(draft.memory),
      timeout_s: minutes === null ? null : Math.round(minutes * 60),
    },
    secrets: { ...Object.fromEntries(others), ...(draft.secret === "" || name === "" ? {} : { [name]: draft.secret }) },
  };
}
