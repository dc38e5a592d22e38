// Colours for the interpreter's languages: words, texts, numbers and remarks, which is what one looks for in a short cell.
import { StreamLanguage, type StreamParser } from "@codemirror/language";

const WORDS: Record<string, string> = {
  python:
    "and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield True False None match case",
  javascript:
    "async await break case catch class const continue default delete do else export extends finally for function if import in instanceof let new null of return static super switch this throw try typeof undefined var void while yield true false interface type enum",
  java: "abstract boolean break byte case catch char class continue default do double else enum extends false final finally float for if implements import instanceof int interface long new null package private protected public record return short static super switch synchronized this throw throws true try var void while",
  r: "break else for function if in next repeat return while TRUE FALSE NULL NA NaN Inf library",
  bash: "case do done elif else esac export fi for function if in local readonly return select set shift then time unset until while",
};

function parser(language: string): StreamParser<{ until?: string }> {
  const family = language === "typescript" ? "javascript" : language;
  const words = new Set((WORDS[family] ?? "").split(" "));
  const slashes = family === "javascript" || family === "java";
  return {
    name: language,
    startState: () => ({}),
    token(stream, state) {
      if (state.until !== undefined) {
        const end = stream.string.indexOf(state.until, stream.pos);
        if (end === -1) stream.skipToEnd();
        else {
          stream.pos = end + state.until.length;
          state.until = undefined;
        }
        return "string";
      }
      if (stream.eatSpace()) return null;
      if (slashes ? stream.match("//") : stream.match("#")) {
        stream.skipToEnd();
        return "comment";
      }
      const long =
        family === "javascript" ? stream.match("`") : /^(python|java)$/.test(family) && stream.match(/^("""|''')/);
      if (long) {
        state.until = stream.current();
        return "string";
      }
      if (stream.match(/^"(?:[^"\\]|\\.)*"?|^'(?:[^'\\]|\\.)*'?/)) return "string";
      if (stream.match(/^\d[\w.]*/)) return "number";
      if (stream.match(/^[A-Za-z_$][\w$]*/)) return words.has(stream.current()) ? "keyword" : null;
      stream.next();
      return null;
    },
    languageData: { commentTokens: { line: slashes ? "//" : "#" } },
  };
}

const known = new Map<string, StreamLanguage<unknown>>();

export function highlighting(language: string): StreamLanguage<unknown> {
  const found = known.get(language) ?? StreamLanguage.define(parser(language));
  known.set(language, found);
  return found;
}
