// One terminal of a sandbox, over agentd's process API. The process does not notice when the network or the server
// goes away; this counts the bytes it has and goes on exactly after them.
import { ApiError } from "../api/client";
import { agentOf, serverStream, unary, type Agent } from "../api/connect";

export type PtyState =
  | { name: "starting" }
  | { name: "live" }
  | { name: "reconnecting"; attempt: number }
  | { name: "detached" }
  | { name: "ended"; text: string }
  | { name: "failed"; text: string };

interface ProcessEvent {
  event: {
    start?: { pid: number; offsets?: { pty?: string } };
    data?: { pty?: string; offset?: string };
    end?: { exitCode?: number; status?: string; error?: string };
  };
}

export interface PtyEvents {
  /** Answers with a promise where there is more than can be shown at once; nothing more is read until then. */
  data: (bytes: Uint8Array) => void | Promise<void>;
  /** So many bytes are not kept any more and were never shown here. */
  gap: (missing: number) => void;
  /** So much of what was typed or pasted did not arrive, or did in part. */
  lost: (bytes: number, why: "away" | "too much") => void;
  state: (state: PtyState) => void;
}

const LONGEST_WAIT_MS = 5000;
/** What one message of input may hold; a paste is sent in such pieces. */
const LARGEST_INPUT = 16 * 1024;
/** What may wait to be sent while the connection is away. */
const MOST_WAITING = 1 << 20;

export function fromBase64(text: string): Uint8Array {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

export function toBase64(bytes: Uint8Array): string {
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary);
}

/**
 * What of a piece is new to a reader that has `have` bytes: agentd may begin earlier than asked (then the beginning is
 * known already) or later (then something is missing).
 */
export function newPart(have: number, offset: number, bytes: Uint8Array): { missing: number; fresh: Uint8Array } {
  if (offset >= have) return { missing: offset - have, fresh: bytes };
  return { missing: 0, fresh: bytes.subarray(Math.min(bytes.length, have - offset)) };
}

export class Pty {
  state: PtyState = { name: "detached" };
  private have = 0;
  private agent: Agent | undefined;
  private running: AbortController | undefined;
  private waiting: Uint8Array[] = [];
  private sending = false;
  private size = { cols: 80, rows: 24 };

  /** With a `pid`, that process is taken up from its beginning as far as it is kept; else a shell is started. */
  constructor(
    readonly sandbox: string,
    readonly tag: string,
    private readonly events: PtyEvents,
    public pid?: number,
  ) {}

  attach() {
    if (this.running !== undefined || this.state.name === "ended") return;
    const controller = new AbortController();
    this.running = controller;
    void this.run(controller.signal);
  }

  /** Lets go of the connection; the process goes on, and `attach` continues where this was. */
  detach() {
    this.running?.abort();
    this.running = undefined;
    if (this.state.name !== "ended" && this.state.name !== "failed") this.become({ name: "detached" });
  }

  send(bytes: Uint8Array) {
    if (this.state.name === "ended") return;
    // A paste goes whole or not at all: half of a command is another command.
    if (this.held() + bytes.length > MOST_WAITING) return this.events.lost(bytes.length, "too much");
    for (let at = 0; at < bytes.length; at += LARGEST_INPUT) this.waiting.push(bytes.slice(at, at + LARGEST_INPUT));
    void this.flush();
  }

  private held(): number {
    return this.waiting.reduce((sum, piece) => sum + piece.length, 0);
  }

  resize(cols: number, rows: number) {
    if (cols === this.size.cols && rows === this.size.rows) return;
    this.size = { cols, rows };
    if (this.state.name === "live") void this.tellSize();
  }

  /** Ends the shell, with all that it started and that listens. */
  async kill() {
    if (this.pid !== undefined && this.agent !== undefined) {
      await unary(this.agent, "process.Process/SendSignal", { process: { pid: this.pid }, signal: "SIGNAL_SIGKILL" });
    }
  }

  private become(state: PtyState) {
    this.state = state;
    this.events.state(state);
  }

  private async tellSize() {
    if (this.agent === undefined || this.pid === undefined) return;
    const message = { process: { pid: this.pid }, pty: { size: this.size } };
    await unary(this.agent, "process.Process/Update", message).catch(() => undefined);
  }

  private async run(signal: AbortSignal) {
    let attempt = 0;
    while (!signal.aborted) {
      this.become(attempt === 0 && this.pid === undefined ? { name: "starting" } : { name: "reconnecting", attempt });
      try {
        // The token is asked for each time: the control plane knows whether the sandbox still runs.
        this.agent = await agentOf(this.sandbox);
        const ended = await this.follow(signal, () => {
          attempt = 0;
        });
        this.become({ name: "ended", text: ended });
        this.running = undefined;
        return;
      } catch (error) {
        if (signal.aborted) return;
        const verdict = this.judge(error);
        if (verdict !== undefined) {
          this.become(verdict);
          this.running = undefined;
          return;
        }
      }
      attempt += 1;
      this.become({ name: "reconnecting", attempt });
      const wait = Math.min(LONGEST_WAIT_MS, 200 * 2 ** Math.min(attempt, 6)) * (0.5 + Math.random() / 2);
      await new Promise((done) => setTimeout(done, wait));
    }
  }

  /** The state that an error leads to; none where it is worth another try. */
  private judge(error: unknown): PtyState | undefined {
    if (!(error instanceof ApiError)) return { name: "failed", text: String(error) };
    if (error.code === "not_found") return { name: "ended", text: "The shell has ended." };
    // A shell that never began may be refused for good; one that runs is worth waiting for.
    const passing =
      error.status === 0 || error.status >= 500 || error.code === "unavailable" || [409, 429].includes(error.status);
    if (this.pid !== undefined && (passing || error.status === 200)) return undefined;
    if (passing && error.status !== 502) return undefined;
    return { name: "failed", text: error.message };
  }

  private async follow(signal: AbortSignal, connected: () => void): Promise<string> {
    const agent = this.agent as Agent;
    const shell = {
      process: {
        cmd: "/bin/bash",
        args: ["-i", "-l"],
        envs: { TERM: "xterm-256color", LANG: "C.UTF-8", LC_ALL: "C.UTF-8" },
      },
      pty: { size: this.size },
      tag: this.tag,
      offsets: true,
    };
    const taken = { process: { pid: this.pid }, offsets: true };
    const resume = this.have > 0 ? { ...taken, resumeFrom: { pty: String(this.have) } } : taken;
    const fresh = this.pid === undefined;
    try {
      return await this.read(agent, fresh ? "Start" : "Connect", fresh ? shell : resume, signal, connected);
    } catch (error) {
      if (!(error instanceof ApiError) || error.code !== "out_of_range") throw error;
      // What comes next is not kept any more: go on with what is, and say how much is missing.
      return this.read(agent, "Connect", taken, signal, connected);
    }
  }

  private async read(
    agent: Agent,
    method: string,
    message: unknown,
    signal: AbortSignal,
    connected: () => void,
  ): Promise<string> {
    for await (const { event } of serverStream<ProcessEvent>(agent, `process.Process/${method}`, message, signal)) {
      if (event.start !== undefined) {
        this.pid = event.start.pid;
        connected();
        this.become({ name: "live" });
        void this.tellSize();
        void this.flush();
      }
      if (event.data?.pty !== undefined) {
        const bytes = fromBase64(event.data.pty);
        const offset = Number(event.data.offset ?? this.have);
        const { missing, fresh } = newPart(this.have, offset, bytes);
        if (missing > 0) this.events.gap(missing);
        this.have = Math.max(this.have, offset + bytes.length);
        if (fresh.length > 0) await this.events.data(fresh);
      }
      if (event.end !== undefined)
        return `The shell has ended (${event.end.status ?? `exit ${event.end.exitCode ?? 0}`}).`;
    }
    return "The shell has ended.";
  }

  /** One message at a time, so that keys arrive in their order. */
  private async flush() {
    if (this.sending) return;
    this.sending = true;
    try {
      while (this.waiting.length > 0 && this.state.name === "live" && this.agent !== undefined) {
        const piece = this.gather();
        try {
          const message = { process: { pid: this.pid }, input: { pty: toBase64(piece) } };
          await unary(this.agent, "process.Process/SendInput", message);
        } catch {
          // Whether it arrived cannot be told, and a command that runs twice is worse than a key that is missing.
          // What waits behind it goes too: sent later it would follow a hole.
          const lost = piece.length + this.held();
          this.waiting = [];
          this.events.lost(lost, "away");
          break;
        }
      }
    } finally {
      this.sending = false;
    }
  }

  /** As many waiting pieces as fit into one message. */
  private gather(): Uint8Array {
    const taken: Uint8Array[] = [];
    let size = 0;
    while (this.waiting.length > 0 && size + (this.waiting[0]?.length ?? 0) <= LARGEST_INPUT) {
      const piece = this.waiting.shift() as Uint8Array;
      taken.push(piece);
      size += piece.length;
    }
    const all = new Uint8Array(size);
    let at = 0;
    for (const piece of taken) {
      all.set(piece, at);
      at += piece.length;
    }
    return all;
  }
}
