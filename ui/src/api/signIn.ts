// Signing in by a key, or by a one-time link: the one that `coffer up` prints, or one that a signed-in page created.
import { api, operatorApi, raw, take, type Schemas } from "./client";
import { session, setSession, takeStoredKey, type OpenProject, type Session } from "./session";

type Identity = Schemas["Identity"];

function openProject(me: Identity): OpenProject | undefined {
  if (!me.project) return undefined;
  return {
    projectId: me.project.id,
    projectName: me.project.name,
    role: me.role,
    agentId: me.agent_id ?? undefined,
    domain: me.domain ?? undefined,
  };
}

async function begin(body: Schemas["NewSessionRequest"]) {
  const answer = await raw("/api/v1/sessions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  const { id, secret } = (await answer.json()) as Schemas["BegunSession"];
  const me = await raw("/api/v1/me", { as: "nobody", headers: { "X-Coffer-Session": secret } }).catch(
    (error: unknown) => {
      // The browser took no cookie; without it nothing works.
      throw navigator.cookieEnabled
        ? error
        : new Error("This browser refuses cookies. Allow them for this site to sign in.");
    },
  );
  setSession(sessionOf(id, secret, (await me.json()) as Identity));
}

function sessionOf(id: string, secret: string, me: Identity): Session {
  const operating = me.role === "operator";
  return { id, secret, operating, actor: me.actor, name: me.name ?? undefined, project: openProject(me) };
}

export const signInWithKey = (key: string) => begin({ key });

/** Exchanges the token of a one-time link for a session. The token is good for this once. */
export const signInWithLink = (token: string) => begin({ token });

/** Signs in with the key that an earlier version of this page stored, once. */
export async function exchangeStoredKey() {
  const key = takeStoredKey();
  if (key !== undefined && session() === undefined) await signInWithKey(key).catch(() => undefined);
}

/** Asks who is signed in again: after a new name, or when an admin changed something. */
export async function refreshIdentity() {
  const mine = session();
  if (mine === undefined) return;
  const me = await take(api.GET("/api/v1/me"));
  setSession({ ...mine, actor: me.actor, name: me.name ?? undefined });
}

/** An operator looks into a project. */
export async function visitProject(id: string, name: string) {
  const mine = session();
  if (!mine?.operating) return;
  const answer = await raw("/api/v1/me", { as: "operator", headers: { "X-Coffer-Project": id } });
  const project = openProject((await answer.json()) as Identity);
  if (project !== undefined) setSession({ ...mine, project: { ...project, projectName: name } });
}

/** Signs this browser out, or all browsers of this person. Without an answer the server may still have the session. */
export async function signOut(everywhere = false) {
  const mine = session();
  if (mine === undefined) return;
  if (everywhere) await take(operatorApi.DELETE("/api/v1/sessions"));
  else {
    const path = { session: mine.id };
    const call = operatorApi.DELETE("/api/v1/sessions/{session}", { params: { path } });
    await call.catch(() => undefined);
  }
  setSession(undefined);
}

/** The token of a one-time link in the address, which is taken out of the address at once. */
function takeLinkToken(): string | undefined {
  const match = /^#token=([A-Za-z0-9_]{1,200})$/.exec(location.hash);
  if (match === null) return undefined;
  history.replaceState(null, "", location.pathname + location.search);
  return match[1];
}

/** Taken once, when the script runs: a link opens once, also if React draws things twice. */
export const linkToken = typeof location === "undefined" ? undefined : takeLinkToken();
let redeeming: Promise<void> | undefined;

/** Signs in with the link in the address, if there is one. It wins over a session that exists: the person followed it. */
export function redeemLink(): Promise<void> | undefined {
  if (linkToken !== undefined) redeeming ??= signInWithLink(linkToken);
  return redeeming;
}

export const linkOf = (token: string) => `${location.origin}/ui/#token=${token}`;

/** An address that signs another browser in as this one is, once, within two minutes. */
export async function createSignInLink(): Promise<string> {
  return linkOf((await take(api.POST("/api/v1/sign-in-links"))).token);
}
