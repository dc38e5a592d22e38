// Markdown for the highlighter: headings, code, quotes and links, line by line.
import type { StreamParser } from "@codemirror/language";

export const markdown: StreamParser<{ fenced: boolean }> = {
  name: "markdown",
  startState: () => ({ fenced: false }),
  token(stream, state) {
    if (stream.sol() && stream.match(/^\s{0,3}(```|~~~)/)) {
      state.fenced = !state.fenced;
      stream.skipToEnd();
      return "meta";
    }
    if (state.fenced) {
      stream.skipToEnd();
      return "string";
    }
    if (stream.sol() && stream.match(/^#{1,6}\s/)) {
      stream.skipToEnd();
      return "heading";
    }
    if (stream.sol() && stream.match(/^\s*>/)) {
      stream.skipToEnd();
      return "quote";
    }
    if (stream.sol() && stream.match(/^\s*(?:[-*+]|\d+[.)])\s/)) return "keyword";
    if (stream.match(/^`[^`]*`?/)) return "string";
    if (stream.match(/^\*\*[^*]+\*\*/)) return "keyword";
    if (stream.match(/^\[[^\]]*\]\([^)]*\)/)) return "link";
    if (!stream.match(/^[^`*[]+/)) stream.next();
    return null;
  },
};
