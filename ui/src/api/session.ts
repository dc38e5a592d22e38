// The session of this browser. The browser holds half of its secret in a cookie that no script can read; the page holds the
// other half here, in the storage of this origin, and sends it as a header. Neither opens anything alone. All tabs share it.
import { useSyncExternalStore } from "react";

export interface OpenProject {
  projectId: string;
  projectName: string;
  role: string;
  /** Set if the session were an agent's, which sees only its own sandboxes. */
  agentId?: string;
  /** The domain of sandboxes' ports, if the server has one. */
  domain?: string;
}

export interface Session {
  id: string;
  /** The page's half of the secret. */
  secret: string;
  /** Whether it is an operator's, who may open any project. */
  operating: boolean;
  /** Who acts, as the server records it. */
  actor?: string;
  /** The person's name. */
  name?: string;
  /** The open project. An operator may have none yet. */
  project?: OpenProject;
}

const PLACE = "coffer.page";
/** The project that an operator has open in this tab. */
const OPEN = "coffer.project";
/** Where versions before the cookie had a key. */
const KEY_PLACE = "coffer.session";

const listeners = new Set<() => void>();
let current: Session | undefined = load();
let endedBecause: string | undefined;

function read<T>(place: () => Storage, name: string): T | undefined {
  try {
    const text = place().getItem(name);
    return text === null ? undefined : (JSON.parse(text) as T);
  } catch {
    return undefined;
  }
}

function write(place: () => Storage, name: string, value: unknown) {
  try {
    if (value === undefined) place().removeItem(name);
    else place().setItem(name, JSON.stringify(value));
  } catch {
    // A browser that stores nothing asks people to sign in again after a reload.
  }
}

function load(): Session | undefined {
  const stored = read<Session>(() => localStorage, PLACE);
  if (typeof stored?.secret !== "string" || typeof stored.id !== "string") return undefined;
  // Each tab of an operator may show another project.
  const open = stored.operating ? read<OpenProject>(() => sessionStorage, OPEN) : undefined;
  return open === undefined ? stored : { ...stored, project: open };
}

/** The key that an earlier version stored, which is removed at once: it is exchanged for a session. */
export function takeStoredKey(): string | undefined {
  type Stored = { operatorKey?: string; project?: { key?: string } };
  const places = [() => sessionStorage, () => localStorage];
  const found = places.map((place) => read<Stored>(place, KEY_PLACE));
  for (const place of places) write(place, KEY_PLACE, undefined);
  const stored = found.find((one) => one !== undefined);
  return stored?.operatorKey ?? stored?.project?.key;
}

export function session(): Session | undefined {
  return current;
}

/** Why the last session ended, unless the person ended it. */
export function whyEnded(): string | undefined {
  return endedBecause;
}

function become(next: Session | undefined, because?: string) {
  current = next;
  endedBecause = because;
  for (const listener of listeners) listener();
}

/** Begins or ends the session of all tabs, or opens another project in this one. */
export function setSession(next: Session | undefined, because?: string) {
  write(() => localStorage, PLACE, next);
  write(() => sessionStorage, OPEN, next?.operating ? next.project : undefined);
  become(next, because);
}

/** Gives the open project its new name. */
export function renameProject(name: string) {
  if (current?.project === undefined || current.project.projectName === name) return;
  setSession({ ...current, project: { ...current.project, projectName: name } });
}

// What another tab of this browser stored: it signed in or out, or renamed the project.
if (typeof addEventListener === "function") {
  addEventListener("storage", ({ key }: StorageEvent) => {
    if (key !== PLACE && key !== null) return;
    const next = load();
    if (next?.secret === current?.secret && next?.operating) return;
    become(next);
  });
}

export function onSession(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useSession(): Session | undefined {
  return useSyncExternalStore(onSession, session);
}

/** What requests carry next to the cookie: the page's half, and the project that is looked at. */
export function proof(as: "project" | "operator" = "project"): Record<string, string> {
  if (current === undefined) return {};
  const project = as === "project" ? current.project?.projectId : undefined;
  return { "X-Coffer-Session": current.secret, ...(project === undefined ? {} : { "X-Coffer-Project": project }) };
}

/** Whether the session may do what needs that role. The server decides; this only spares people a refusal. */
export function may(role: "read" | "write" | "admin"): boolean {
  const order = ["read", "write", "admin"];
  const mine = current?.project;
  if (mine === undefined) return false;
  if (role === "admin" && mine.agentId !== undefined) return false;
  return order.indexOf(mine.role) >= order.indexOf(role);
}

/**
 * Why this person may not do what people and services with the role `write` may, as a sentence; undefined if they may. `what` is
 * a verb with its object: "create volumes".
 */
export function whyNot(what: string): string | undefined {
  const mine = current?.project;
  if (mine === undefined) return "Open a project first.";
  if (mine.agentId !== undefined) return `An agent's key cannot ${what}. Sign in with a person's or a service's key.`;
  return may("write") ? undefined : `You may only read. To ${what}, ask an admin for the role write or admin.`;
}
