// Who is signed in. The key is kept for this tab alone (sessionStorage), is sent as a header and never stands in a URL.
import { useSyncExternalStore } from "react";

export interface ProjectKey {
  key: string;
  projectId: string;
  projectName: string;
  role: string;
  /** Set where the key is an agent's, which sees only its own sandboxes. */
  agentId?: string;
  /** Where ports of sandboxes are reached, where the server has a domain for them. */
  domain?: string;
}

export interface Session {
  /** The project being looked at. An operator may have none yet. */
  project?: ProjectKey;
  operatorKey?: string;
}

const PLACE = "coffer.session";
const listeners = new Set<() => void>();
let current: Session | undefined = load();
let endedBecause: string | undefined;

function load(): Session | undefined {
  try {
    const text = sessionStorage.getItem(PLACE);
    return text === null ? undefined : (JSON.parse(text) as Session);
  } catch {
    return undefined;
  }
}

export function session(): Session | undefined {
  return current;
}

/** Why the last session ended, where it was not by its owner's wish. */
export function whyEnded(): string | undefined {
  return endedBecause;
}

export function setSession(next: Session | undefined, because?: string) {
  current = next;
  endedBecause = because;
  try {
    if (next === undefined) sessionStorage.removeItem(PLACE);
    else sessionStorage.setItem(PLACE, JSON.stringify(next));
  } catch {
    // A browser that keeps nothing asks for the key again after a reload.
  }
  for (const listener of listeners) listener();
}

export function onSession(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useSession(): Session | undefined {
  return useSyncExternalStore(onSession, session);
}

/** Whether the key may do what needs that role. The server decides; this only spares people a refusal. */
export function may(role: "read" | "write" | "admin"): boolean {
  const order = ["read", "write", "admin"];
  const mine = current?.project;
  if (mine === undefined) return false;
  if (role === "admin" && mine.agentId !== undefined) return false;
  return order.indexOf(mine.role) >= order.indexOf(role);
}

/**
 * Why this key may not do what people and services with the role `write` may, as a sentence; undefined if it may. `what` is
 * a verb with its object: "create volumes".
 */
export function whyNot(what: string): string | undefined {
  const mine = current?.project;
  if (mine === undefined) return "Open a project first.";
  if (mine.agentId !== undefined) return `An agent's key cannot ${what}. Sign in with a person's or a service's key.`;
  return may("write") ? undefined : `Your key is read-only. To ${what}, sign in with a key of the role write or admin.`;
}
