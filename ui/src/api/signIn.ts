// Signing in by a key, or by a one-time link: the one that `coffer up` prints, or one that a signed-in page created.
import { raw, type Schemas } from "./client";
import { session, setSession, type ProjectKey } from "./session";

type Identity = Schemas["Identity"];

async function identify(key: string): Promise<Identity> {
  return (await raw("/api/v1/me", { key })).json() as Promise<Identity>;
}

function projectKey(key: string, me: Identity): ProjectKey {
  return {
    key,
    projectId: me.project?.id ?? "",
    projectName: me.project?.name ?? "",
    role: me.role,
    keyId: me.key_id,
    agentId: me.agent_id ?? undefined,
    domain: me.domain ?? undefined,
  };
}

export async function signInWithKey(key: string) {
  const me = await identify(key);
  setSession(me.role === "operator" ? { operatorKey: key } : { project: projectKey(key, me) });
}

/** Exchanges the token of a one-time link for a key of limited life. The token is good for this once. */
export async function signInWithLink(token: string) {
  const answer = await raw("/api/v1/sign-in", {
    method: "POST",
    key: null,
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ token }),
  });
  const { key } = (await answer.json()) as Schemas["MadeKey"];
  await signInWithKey(key);
}

const VISIT_S = 12 * 3600;

/** An operator looks into a project, with a key of that project's that ends by itself. */
export async function visitProject(id: string, name: string) {
  const operatorKey = session()?.operatorKey;
  if (operatorKey === undefined) return;
  const answer = await raw(`/api/v1/projects/${encodeURIComponent(id)}/keys`, {
    method: "POST",
    key: operatorKey,
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ name: "operator in the web UI", role: "admin", expires_in_s: VISIT_S }),
  });
  const { key } = (await answer.json()) as Schemas["MadeKey"];
  const me = await identify(key);
  setSession({ operatorKey, project: { ...projectKey(key, me), projectName: name } });
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

/** An address that signs another browser in as this one is, once, within two minutes. */
export async function createSignInLink(): Promise<string> {
  const key = session()?.project?.key ?? session()?.operatorKey;
  const answer = await raw("/api/v1/sign-in-links", { method: "POST", key });
  const { token } = (await answer.json()) as Schemas["SignInLink"];
  return `${location.origin}/ui/#token=${token}`;
}
