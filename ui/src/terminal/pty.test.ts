import { describe, expect, it } from "vitest";
import { fromBase64, newPart, toBase64 } from "./pty";

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
