// What is typed into the form for a new template. It outlives the page: whoever looks at the log of a failed build and
// comes back finds it as it was, with the files. The text also outlives a reload; files cannot.
import { useSyncExternalStore } from "react";
import { session } from "../api/session";
import type { ContextFile } from "./context";

export interface BuildDraft {
  name: string;
  tag: string;
  dockerfile: string;
  cpus: string;
  memoryMib?: number;
  diskMib?: number;
  start: string;
  ready: string;
  /** Lines of `NAME=value`. */
  args: string;
  /** Names of secrets that every command gets. */
  secrets: string;
  /** What the template is for. */
  summary: string;
  noCache: boolean;
}

export const BLANK: BuildDraft = {
  name: "",
  tag: "",
  dockerfile: "",
  cpus: "",
  start: "",
  ready: "",
  args: "",
  secrets: "",
  summary: "",
  noCache: false,
};

const PLACE = "coffer.build-draft";
const listeners = new Set<() => void>();
const place = () => `${PLACE}.${session()?.project?.projectId ?? ""}`;

let owner: string | undefined;
let draft = BLANK;
let files: ContextFile[] = [];

/** Another project's draft is not this one's. */
function load() {
  const mine = place();
  if (owner === mine) return;
  owner = mine;
  files = [];
  try {
    const stored: unknown = JSON.parse(sessionStorage.getItem(mine) ?? "{}");
    draft = { ...BLANK, ...(typeof stored === "object" ? stored : {}) };
  } catch {
    draft = BLANK;
  }
}

function changed() {
  for (const listener of listeners) listener();
}

export function draftNow(): BuildDraft {
  load();
  return draft;
}

export function filesNow(): ContextFile[] {
  load();
  return files;
}

export function setDraft(next: Partial<BuildDraft>) {
  draft = { ...draftNow(), ...next };
  try {
    if (draft === BLANK) sessionStorage.removeItem(place());
    else sessionStorage.setItem(place(), JSON.stringify(draft));
  } catch {
    // A browser that keeps nothing loses it with a reload.
  }
  changed();
}

export function setFiles(next: ContextFile[]) {
  load();
  files = next;
  changed();
}

export function clearDraft() {
  setDraft(BLANK);
  setFiles([]);
}

function subscribe(listener: () => void) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useDraft(): { draft: BuildDraft; files: ContextFile[] } {
  return { draft: useSyncExternalStore(subscribe, draftNow), files: useSyncExternalStore(subscribe, filesNow) };
}
