import { expect, test } from "vitest";
import { newest, pieceText } from "./pieces";

const texts = (...all: string[]) => all.map((text) => ({ text }));

test("the newest are kept, and the oldest of them is cut where it must be", () => {
  expect(newest(texts("one", "two", "three"), 100)).toEqual(texts("one", "two", "three"));
  expect(newest(texts("one", "two", "three"), 7)).toEqual(texts("wo", "three"));
  expect(newest(texts("one", "two", "three"), 2)).toEqual(texts("ee"));
  expect(newest([], 2)).toEqual([]);
});

test("what is written is shown without what moves cursors, line by line", () => {
  const piece = { stream: "stdout", kind: "output", offset: 0, at: "2026-11-15T00:00:00Z" };
  expect(pieceText({ ...piece, text: "\u001b[31mred\u001b[0m\nnext\n" })).toBe("red\nnext\n");
  expect(pieceText({ ...piece, base64: "AAAA" })).toBe("[3 bytes that are not text]");
  expect(pieceText({ ...piece, kind: "gap", missing_bytes: 7 })).toContain("7 bytes were dropped");
});
