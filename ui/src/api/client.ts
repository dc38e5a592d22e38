// Calls of the API, typed by its description. A refusal becomes an `ApiError` with the server's own words.
import createClient, { type Middleware } from "openapi-fetch";
import type { components, paths } from "./schema";
import { proof, session, setSession } from "./session";

export type Schemas = components["schemas"];

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint?: string,
    readonly requestId?: string,
    readonly retryAfter?: number,
    readonly details?: Record<string, unknown>,
  ) {
    super(message);
  }
}

/** What the server said, or that it said nothing. */
export function toError(body: unknown, response?: Response): ApiError {
  const status = response?.status ?? 0;
  const shape = (typeof body === "object" && body !== null ? body : {}) as Record<string, unknown>;
  const text = (name: string) => (typeof shape[name] === "string" ? shape[name] : undefined);
  const retry = Number(response?.headers.get("retry-after") ?? Number.NaN);
  return new ApiError(
    status,
    text("code") ?? String(status),
    text("message") ?? `the server answered with ${status}`,
    text("hint"),
    text("request_id") ?? response?.headers.get("x-request-id") ?? undefined,
    Number.isFinite(retry) ? retry : undefined,
    typeof shape.details === "object" && shape.details !== null
      ? (shape.details as Record<string, unknown>)
      : undefined,
  );
}

/** Reads are retried by themselves. A change is not: it may have arrived, so the person decides. */
export function unreachable(method = "GET"): ApiError {
  const isRead = ["GET", "HEAD"].includes(method.toUpperCase());
  const hint = isRead
    ? "it may be restarting; the page tries again"
    : "nothing was confirmed; check whether it was done once the server is back, then send it again";
  return new ApiError(0, "unreachable", "the server does not answer", hint);
}

/** A session that is not good any more ends here too, wherever that is noticed. */
export function ifSignedOut(status: number, used: string | null | undefined) {
  if (status === 401 && used !== undefined && used !== null && used === session()?.secret) {
    setSession(undefined, "You were signed out: the session has expired or was ended.");
  }
}

function proven(as: "project" | "operator"): Middleware {
  return {
    onRequest({ request }) {
      for (const [name, value] of Object.entries(proof(as))) request.headers.set(name, value);
      return request;
    },
    onResponse({ request, response }) {
      ifSignedOut(response.status, request.headers.get("X-Coffer-Session"));
    },
    onError({ request }) {
      return unreachable(request.method);
    },
  };
}

/** In the project that is looked at. */
export const api = createClient<paths>({ baseUrl: "" });
api.use(proven("project"));

/** As the operator, or whoever is signed in, in no project. */
export const operatorApi = createClient<paths>({ baseUrl: "" });
operatorApi.use(proven("operator"));

/** The data of an answer, or the refusal thrown. Routes that can also answer with plain text do so unasked by this. */
export async function take<T>(
  call: Promise<{ data?: T; error?: unknown; response: Response }>,
): Promise<Exclude<T, string>> {
  const { data, error, response } = await call;
  if (!response.ok) throw toError(error, response);
  return data as Exclude<T, string>;
}

/** A request outside of the description: E2B's routes, and streams. */
export async function raw(
  path: string,
  init: RequestInit & { as?: "project" | "operator" | "nobody" } = {},
): Promise<Response> {
  const { as = "project", ...rest } = init;
  const headers = new Headers(as === "nobody" ? {} : proof(as));
  new Headers(rest.headers).forEach((value, name) => headers.set(name, value));
  let response: Response;
  try {
    response = await fetch(path, { ...rest, headers });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw unreachable(rest.method);
  }
  ifSignedOut(response.status, headers.get("X-Coffer-Session"));
  if (!response.ok) throw toError(await response.json().catch(() => undefined), response);
  return response;
}
