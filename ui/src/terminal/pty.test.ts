import { beforeEach, describe, expect, it, vi } from "vitest";
import * as connect from "../api/connect";
import { fromBase64, newPart, Pty, toBase64 } from "./pty";

vi.mock("../api/connect", () => ({ agentOf: vi.fn(), serverStream: vi.fn(), unary: vi.fn() }));

describe("newPart", () => {
  const bytes = Uint8Array.from([1, 2, 3, 4]);
  it("takes what follows", () => {
    expect(newPart(10, 10, bytes)).toEqual({ missing: 0, fresh: bytes });
  });
  it("leaves out what is known, also all of it", () => {
    expect(newPart(12, 10, bytes)).toEqual({ missing: 0, fresh: Uint8Array.from([3, 4]) });
    expect(newPart(20, 10, bytes).fresh.length).toBe(0);
  });
  it("tells what is missing", () => {
    expect(newPart(3, 10, bytes).missing).toBe(7);
  });
});

it("base64 keeps every byte", () => {
  const all = Uint8Array.from({ length: 256 }, (_, at) => at);
  expect(fromBase64(toBase64(all))).toEqual(all);
});

describe("input", () => {
  const sent: Uint8Array[] = [];
  let refuse: (() => boolean) | undefined;
  beforeEach(() => {
    sent.length = 0;
    refuse = undefined;
    vi.mocked(connect.agentOf).mockResolvedValue({ sandbox: "s" });
    vi.mocked(connect.serverStream).mockImplementation(async function* () {
      yield { event: { start: { pid: 7 } } };
      await new Promise(() => undefined);
    });
    vi.mocked(connect.unary).mockImplementation((_, method, message) => {
      if (!method.endsWith("SendInput")) return Promise.resolve({});
      if (refuse?.()) return Promise.reject(new Error("away"));
      sent.push(fromBase64((message as { input: { pty: string } }).input.pty));
      return Promise.resolve({});
    });
  });

  async function live(lost: (bytes: number, why: string) => void) {
    const pty = new Pty("s", "t", { data: () => undefined, gap: () => undefined, lost, state: () => undefined });
    pty.attach();
    await vi.waitFor(() => expect(pty.state.name).toBe("live"));
    return pty;
  }

  it("a paste that breaks off has no hole: what is behind the break is not sent later", async () => {
    const lost = vi.fn();
    const pty = await live(lost);
    refuse = () => sent.length === 1;
    pty.send(new Uint8Array(64 * 1024).fill(1));
    await vi.waitFor(() => expect(lost).toHaveBeenCalledWith(48 * 1024, "away"));
    refuse = undefined;
    pty.send(Uint8Array.of(2));
    await vi.waitFor(() => expect(sent.at(-1)).toEqual(Uint8Array.of(2)));
    expect(sent.map((piece) => piece.length)).toEqual([16 * 1024, 1]);
    pty.detach();
  });

  it("more than it takes is refused whole, and told", async () => {
    const lost = vi.fn();
    const pty = await live(lost);
    pty.send(new Uint8Array((1 << 20) + 1));
    expect(lost).toHaveBeenCalledWith((1 << 20) + 1, "too much");
    await Promise.resolve();
    expect(sent).toEqual([]);
    pty.detach();
  });
});

it("nothing more is read while there is too much to show", async () => {
  let drawn: () => void = () => undefined;
  const data = vi.fn(() => new Promise<void>((done) => (drawn = done)));
  vi.mocked(connect.agentOf).mockResolvedValue({ sandbox: "s" });
  vi.mocked(connect.serverStream).mockImplementation(async function* () {
    yield { event: { start: { pid: 7 } } };
    yield { event: { data: { pty: toBase64(Uint8Array.of(1)), offset: "0" } } };
    yield { event: { data: { pty: toBase64(Uint8Array.of(2)), offset: "1" } } };
    await new Promise(() => undefined);
  });
  const pty = new Pty("s", "t", { data, gap: () => undefined, lost: () => undefined, state: () => undefined });
  pty.attach();
  await vi.waitFor(() => expect(data).toHaveBeenCalledTimes(1));
  await new Promise((done) => setTimeout(done, 20));
  expect(data).toHaveBeenCalledTimes(1);
  drawn();
  await vi.waitFor(() => expect(data).toHaveBeenCalledTimes(2));
  pty.detach();
});
