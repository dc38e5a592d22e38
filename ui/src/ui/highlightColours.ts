// The colours of words in an editor, from the theme.
import { HighlightStyle } from "@codemirror/language";
import { tags } from "@lezer/highlight";

export const HIGHLIGHT_COLOURS = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--accent)", fontWeight: "600" },
  { tag: tags.string, color: "var(--ok)" },
  { tag: tags.comment, color: "var(--dim)", fontStyle: "italic" },
  { tag: tags.variableName, color: "var(--info)" },
  { tag: tags.number, color: "var(--info)" },
  { tag: tags.attributeName, color: "var(--warn)" },
]);
