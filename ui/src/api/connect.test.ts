import { describe, expect, it } from "vitest";
import { frame, FrameReader } from "./connect";

describe("FrameReader", () => {
  it("puts messages together whatever the pieces", () => {
    const messages = [{ a: 1 }, { text: "ü€😀" }, {}];
    const all = Uint8Array.from(messages.flatMap((message) => [...frame(message)]));
    for (let piece = 1; piece <= all.length; piece += 1) {
      const reader = new FrameReader();
      const got: unknown[] = [];
      for (let at = 0; at < all.length; at += piece) {
        for (const { text } of reader.push(all.subarray(at, at + piece))) got.push(JSON.parse(text));
      }
      expect(got).toEqual(messages);
    }
  });

  it("tells the last message from the others", () => {
    const last = frame({ error: { code: "not_found" } });
    last[0] = 2;
    expect(new FrameReader().push(last)).toEqual([{ last: true, text: '{"error":{"code":"not_found"}}' }]);
  });

  it("refuses a message that claims to be huge before it is there", () => {
    expect(() => new FrameReader().push(Uint8Array.from([0, 0x7f, 0xff, 0xff, 0xff]))).toThrow("too long");
  });
});
