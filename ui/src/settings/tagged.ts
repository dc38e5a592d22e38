// Things that are changed as a whole: read with their version, written only if nobody else was faster.
import { raw } from "../api/client";

export interface Tagged<T> {
  value: T;
  tag: string | null;
}

export async function readTagged<T>(path: string, as?: "project" | "operator"): Promise<Tagged<T>> {
  const answer = await raw(path, { as });
  return { value: (await answer.json()) as T, tag: answer.headers.get("etag") };
}

export async function writeTagged<T>(
  method: "PUT" | "PATCH",
  path: string,
  body: unknown,
  tag: string | null,
  as?: "project" | "operator",
): Promise<Tagged<T>> {
  const headers: Record<string, string> = { "content-type": "application/json" };
  if (tag !== null) headers["if-match"] = tag;
  const answer = await raw(path, { method, as, headers, body: JSON.stringify(body) });
  return { value: (await answer.json()) as T, tag: answer.headers.get("etag") };
}
