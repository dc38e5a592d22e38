// The Connect protocol as agentd speaks it: JSON, unary and server streams, over plain fetch. All that comes from a
// sandbox is hostile, so a message has a largest size.
import { ApiError, raw, unreachable } from "./client";

const LARGEST_MESSAGE = 8 << 20;
const LAST = 0x02;
const AGENTD = "49983";

export interface Frame {
  last: boolean;
  text: string;
}

/** Puts messages together from bytes that come in any pieces. */
export class FrameReader {
  private held = new Uint8Array(0);
  private decoder = new TextDecoder();

  push(bytes: Uint8Array): Frame[] {
    const all = new Uint8Array(this.held.length + bytes.length);
    all.set(this.held);
    all.set(bytes, this.held.length);
    const frames: Frame[] = [];
    let at = 0;
    while (all.length - at >= 5) {
      const size = new DataView(all.buffer, at + 1, 4).getUint32(0);
      if (size > LARGEST_MESSAGE) throw new ApiError(0, "malformed", "the sandbox sent a message that is too long");
      if (all.length - at - 5 < size) break;
      const last = ((all[at] ?? 0) & LAST) !== 0;
      frames.push({ last, text: this.decoder.decode(all.subarray(at + 5, at + 5 + size)) });
      at += 5 + size;
    }
    this.held = all.slice(at);
    return frames;
  }
}

export function frame(message: unknown): Uint8Array<ArrayBuffer> {
  const body = new TextEncoder().encode(JSON.stringify(message));
  const bytes = new Uint8Array(5 + body.length);
  new DataView(bytes.buffer).setUint32(1, body.length);
  bytes.set(body, 5);
  return bytes;
}

/** Where calls go: a sandbox and the token that its agentd wants. */
export interface Agent {
  sandbox: string;
  token?: string;
}

/** Asks the control plane, which wakes nothing, for the token. */
export async function agentOf(sandbox: string): Promise<Agent> {
  const answer = await raw(`/sandboxes/${encodeURIComponent(sandbox)}`);
  const detail = (await answer.json()) as { envdAccessToken?: string };
  return { sandbox, token: detail.envdAccessToken };
}

function headers(agent: Agent, type: string): Record<string, string> {
  const all: Record<string, string> = {
    "content-type": type,
    "connect-protocol-version": "1",
    "e2b-sandbox-id": agent.sandbox,
    "e2b-sandbox-port": AGENTD,
    // A pause breaks streams, and who then reconnects would undo it.
    "x-coffer-wake": "never",
  };
  if (agent.token !== undefined) all["x-access-token"] = agent.token;
  return all;
}

async function post(agent: Agent, method: string, type: string, body: BodyInit, more: RequestInit = {}) {
  const extra = (more.headers ?? {}) as Record<string, string>;
  let response: Response;
  try {
    // What a sandbox gets is the token of its own agentd.
    response = await fetch(`/${method}`, {
      ...more,
      method: "POST",
      // The session is not for sandboxes to see.
      credentials: "omit",
      body,
      headers: { ...headers(agent, type), ...extra },
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw unreachable();
  }
  if (!response.ok) throw refusal(response.status, await response.json().catch(() => undefined));
  return response;
}

function refusal(status: number, body: unknown): ApiError {
  // What the sandbox says of itself may have any shape.
  const { code, message } = (body ?? {}) as { code?: unknown; message?: unknown };
  const text = typeof message === "string" ? message : `the sandbox answered with ${status}`;
  return new ApiError(status, typeof code === "string" ? code : String(status), text);
}

export async function unary<T>(agent: Agent, method: string, message: unknown, signal?: AbortSignal): Promise<T> {
  const response = await post(agent, method, "application/json", JSON.stringify(message), { signal });
  return (await response.json()) as T;
}

/** The messages of a stream until its end; throws when it broke off or ended with an error. */
export async function* serverStream<T>(
  agent: Agent,
  method: string,
  message: unknown,
  signal: AbortSignal,
): AsyncGenerator<T, void> {
  const response = await post(agent, method, "application/connect+json", frame(message), {
    signal,
    headers: { "keepalive-ping-interval": "20" },
  });
  const reader = (response.body as ReadableStream<Uint8Array>).getReader();
  const frames = new FrameReader();
  try {
    while (true) {
      let piece: ReadableStreamReadResult<Uint8Array>;
      try {
        piece = await reader.read();
      } catch (error) {
        if (signal.aborted) throw error;
        throw unreachable();
      }
      if (piece.done) throw unreachable();
      for (const { last, text } of frames.push(piece.value)) {
        const body = JSON.parse(text) as unknown;
        if (!last) {
          yield body as T;
          continue;
        }
        const error = (body as { error?: { code?: string; message?: string } }).error;
        if (error !== undefined) throw refusal(200, error);
        return;
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}
