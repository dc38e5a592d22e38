// The session of this browser. The key is sent as a header and is never in a URL. A tab keeps it in sessionStorage and hands it to
// other tabs of this browser that ask for it; it outlives the browser only if the person chose to stay signed in.
import { useSyncExternalStore } from "react";

export interface ProjectKey {
  key: string;
  projectId: string;
  projectName: string;
  role: string;
  /** Which key it is, as the server records it. */
  keyId?: string;
  /** Set if the key is an agent's, which sees only its own sandboxes. */
  agentId?: string;
  /** The domain of sandboxes' ports, if the server has one. */
  domain?: string;
}

export interface Session {
  /** The open project. An operator may have none yet. */
  project?: ProjectKey;
  operatorKey?: string;
}

type Note =
  | { kind: "ask" }
  | { kind: "answer"; session: Session }
  | { kind: "ended"; key: string }
  | { kind: "renamed"; project: ProjectKey };

const PLACE = "coffer.session";
const ANSWER_MS = 200;
const listeners = new Set<() => void>();
// A browser without it, or a test without a browser, has tabs that know nothing of each other.
const tabs = typeof BroadcastChannel === "undefined" ? undefined : new BroadcastChannel("coffer.tabs");
let current: Session | undefined = load();
let endedBecause: string | undefined;

function stored(place: () => Storage): Session | undefined {
  try {
    const text = place().getItem(PLACE);
    return text === null ? undefined : (JSON.parse(text) as Session);
  } catch {
    return undefined;
  }
}

function load(): Session | undefined {
  return stored(() => sessionStorage) ?? stored(() => localStorage);
}

function write(place: () => Storage, next: Session | undefined) {
  try {
    if (next === undefined) place().removeItem(PLACE);
    else place().setItem(PLACE, JSON.stringify(next));
  } catch {
    // A browser that stores nothing asks for the key again after a reload.
  }
}

export function session(): Session | undefined {
  return current;
}

/** Why the last session ended, unless the person ended it. */
export function whyEnded(): string | undefined {
  return endedBecause;
}

/** Whether the session outlives this browser's tabs. */
export function staysSignedIn(): boolean {
  return stored(() => localStorage) !== undefined;
}

/** Keeps the session on this computer, or stops keeping it. */
export function staySignedIn(stay: boolean) {
  write(() => localStorage, stay ? current : undefined);
}

function become(next: Session | undefined, because?: string) {
  current = next;
  endedBecause = because;
  write(() => sessionStorage, next);
  for (const listener of listeners) listener();
}

/** What two tabs of one session share, also if an operator looks at a different project in each. */
const keyOf = (of: Session | undefined) => of?.operatorKey ?? of?.project?.key;

/** Begins or ends the session, or opens another project. Signing out ends it in all tabs that share it. */
export function setSession(next: Session | undefined, because?: string) {
  const mine = keyOf(current);
  // The computer keeps what this tab shows now. Another person's session there is not this tab's to change.
  if (staysSignedIn() && keyOf(stored(() => localStorage)) === mine) write(() => localStorage, next);
  if (next === undefined && mine !== undefined) tabs?.postMessage({ kind: "ended", key: mine } satisfies Note);
  become(next, because);
}

/** Gives the open project its new name, in all tabs. */
export function renameProject(name: string) {
  if (current?.project === undefined || current.project.projectName === name) return;
  const project = { ...current.project, projectName: name };
  tabs?.postMessage({ kind: "renamed", project } satisfies Note);
  become({ ...current, project });
}

let answered: (() => void) | undefined;

tabs?.addEventListener("message", ({ data }: MessageEvent<Note>) => {
  if (data.kind === "ask" && current !== undefined) {
    tabs.postMessage({ kind: "answer", session: current } satisfies Note);
  } else if (data.kind === "answer" && current === undefined && answered !== undefined) {
    become(data.session);
    answered();
  } else if (data.kind === "ended" && keyOf(current) === data.key) {
    become(undefined);
  } else if (data.kind === "renamed" && current?.project?.projectId === data.project.projectId) {
    become({ ...current, project: { ...current.project, projectName: data.project.projectName } });
  }
});

/** Asks the other tabs of this browser for their session; it has none if none of them answers soon. */
export function askTabs(): Promise<void> {
  if (current !== undefined || tabs === undefined) return Promise.resolve();
  return new Promise((done) => {
    const finish = () => {
      clearTimeout(timer);
      answered = undefined;
      done();
    };
    const timer = setTimeout(finish, ANSWER_MS);
    answered = finish;
    tabs.postMessage({ kind: "ask" } satisfies Note);
  });
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
