// Repositories on any git server: GitLab, Gitea, or a server of one's own.
import { api, take, type Schemas } from "../api/client";

export interface GitPlace {
  origin: string;
  host: string;
  path: string;
}

/** Where a repository is, as its address names it; nothing if it is no address of one. */
export function gitAddress(text: string): GitPlace | undefined {
  try {
    const url = new URL(text.trim());
    const path = url.pathname.replace(/^\/+|\/+$/g, "");
    const plain = url.username === "" && url.password === "" && url.search === "" && url.hash === "";
    return url.protocol === "https:" && path !== "" && plain
      ? { origin: url.origin, host: url.hostname, path }
      : undefined;
  } catch {
    return undefined;
  }
}

/** A name for the repository here. */
export const gitName = (path: string) => (path.split("/").pop() ?? "").replace(/\.git$/, "");

/** Connects the project to the server if it is not, and registers the repository. */
export async function addByAddress(
  place: GitPlace,
  user: string,
  token: string,
  name: string,
  known: Schemas["Connection"][],
) {
  const mine = known.find((one) => one.kind === "git" && one.base_url === place.origin && one.user === user);
  const plain = new URL(place.origin).host.replace(/[^a-z0-9.]+/gi, "-");
  const taken = known.some((one) => one.name === plain);
  const called = taken ? `${plain}-${user.replace(/[^a-z0-9]+/gi, "-")}` : plain;
  const secret = mine?.secret ?? `${called}-token`;
  const params = { path: { secret } };
  await take(api.PUT("/api/v1/secrets/{secret}", { params, body: { value: token, hosts: [place.host] } }));
  const body = { name: called, kind: "git", base_url: place.origin, secret, user };
  const connection = mine ?? (await take(api.POST("/api/v1/forge/connections", { body })));
  try {
    const repository = { name, connection_id: connection.id, remote: place.path };
    return await take(api.POST("/api/v1/repositories", { body: repository }));
  } catch (error) {
    // A server that does not know the token leaves nothing behind.
    if (mine === undefined) {
      const path = { connection: connection.id };
      await api.DELETE("/api/v1/forge/connections/{connection}", { params: { path } });
      await api.DELETE("/api/v1/secrets/{secret}", { params });
    }
    throw error;
  }
}
