// Colours for a file in an editor, by its name.
import { HighlightStyle, StreamLanguage, syntaxHighlighting } from "@codemirror/language";
import type { Extension } from "@codemirror/state";
import { tags } from "@lezer/highlight";
import "./code.css";
import { languageOfPath } from "./languages";
import { parserOf } from "./modes";

/** An editor reads in the page itself, so what is large, or made to be slow, stays plain. */
const MOST_CHARACTERS = 1_000_000;
const LONGEST_LINE = 5000;

const STYLE = HighlightStyle.define([
  { tag: [tags.keyword, tags.modifier, tags.self], color: "var(--hl-k)" },
  { tag: [tags.string, tags.regexp, tags.special(tags.string), tags.link], color: "var(--hl-s)" },
  { tag: [tags.number, tags.atom, tags.bool, tags.null], color: "var(--hl-n)" },
  { tag: [tags.comment, tags.quote], color: "var(--hl-c)", fontStyle: "italic" },
  { tag: [tags.typeName, tags.className, tags.tagName, tags.namespace], color: "var(--hl-t)" },
  { tag: [tags.definition(tags.variableName), tags.function(tags.variableName), tags.heading], color: "var(--hl-d)" },
  { tag: [tags.propertyName, tags.attributeName], color: "var(--hl-p)" },
  { tag: [tags.meta, tags.annotation, tags.standard(tags.variableName)], color: "var(--hl-m)" },
]);

export async function coloursOf(path: string, text: string): Promise<Extension> {
  const language = languageOfPath(path);
  if (language === undefined || text.length > MOST_CHARACTERS) return [];
  for (let from = 0; from < text.length;) {
    const end = text.indexOf("\n", from);
    if ((end === -1 ? text.length : end) - from > LONGEST_LINE) return [];
    from = end === -1 ? text.length : end + 1;
  }
  const parser = await parserOf(language);
  return parser === undefined ? [] : [StreamLanguage.define(parser), syntaxHighlighting(STYLE)];
}
