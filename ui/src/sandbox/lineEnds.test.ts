import { EditorState } from "@codemirror/state";
import { describe, expect, it } from "vitest";
import { decoded } from "../api/files";
import { lineSeparator } from "./lineEnds";

function opened(doc: string) {
  return EditorState.create({ doc, extensions: [EditorState.lineSeparator.of(lineSeparator(doc))] });
}

describe("a file that is opened and saved", () => {
  const texts = [
    "",
    "a",
    "a\nb\n",
    "a\r\nb\r\n",
    "a\r\nb",
    "a\rb\r",
    "a\r\nb\nc\rd",
    "\n\r\n",
    "\r\n\r\n",
    "a\r\n\n",
    "\ufeffa\r\nb\r\n",
  ];
  it.each(texts)("has the bytes that it had: %j", (text) => {
    expect(opened(text).sliceDoc()).toBe(text);
  });

  it("has its own kind of line ends in what is added", () => {
    const state = opened("a\r\nb\r\n");
    const { state: next } = state.update(state.replaceSelection(state.toText("new\r\n")));
    expect(next.sliceDoc()).toBe("new\r\na\r\nb\r\n");
  });

  it("keeps the mark at its beginning", () => {
    const bytes = Uint8Array.of(0xef, 0xbb, 0xbf, 0x61);
    expect(new TextEncoder().encode(decoded(bytes, true))).toEqual(bytes);
  });
});
