// Splits lines of a program into coloured parts. All of it is hostile: time, lines and parts are bounded, and what is beyond
// the bounds, or breaks a reader, stays plain.
import { StringStream, type StreamParser } from "@codemirror/language";

/** What a part is, as one letter; plain text has none. */
export type Kind = "k" | "s" | "n" | "c" | "t" | "d" | "p" | "m" | "";
/** The parts of a line, one after the other: a length, then the place of its kind in `KINDS`. */
export type LineTokens = number[];

export const KINDS: Kind[] = ["", "k", "s", "n", "c", "t", "d", "p", "m"];

/** Longer lines are data, or made to be slow. */
const LONGEST_LINE = 1000;
const MOST_PARTS = 300;
/** How often the clock is asked, in lines. */
const EVERY = 16;

const BY_WORD: Record<string, Kind> = {
  keyword: "k",
  modifier: "k",
  self: "k",
  string: "s",
  character: "s",
  regexp: "s",
  link: "s",
  inserted: "s",
  number: "n",
  integer: "n",
  float: "n",
  atom: "n",
  bool: "n",
  null: "n",
  color: "n",
  comment: "c",
  quote: "c",
  typeName: "t",
  type: "t",
  className: "t",
  namespace: "t",
  tagName: "t",
  tag: "t",
  def: "d",
  heading: "d",
  header: "d",
  propertyName: "p",
  property: "p",
  attributeName: "p",
  attribute: "p",
  meta: "m",
  annotation: "m",
  builtin: "m",
  deleted: "m",
};

/** The kind for a word of a reader: `variableName.definition`, `string.special`, `def`. */
export function kindOf(style: string | null | undefined): Kind {
  if (!style) return "";
  for (const word of style.split(" ")) {
    if (/\.(definition|function)\b/.test(word)) return "d";
    if (word === "variableName.standard") return "m";
    const name = word.split(/[.-]/)[0] ?? "";
    const kind = Object.hasOwn(BY_WORD, name) ? BY_WORD[name] : undefined;
    if (kind !== undefined) return kind;
  }
  return "";
}

function ofLine(parser: StreamParser<unknown>, state: unknown, line: string): LineTokens {
  const parts: LineTokens = [];
  const stream = new StringStream(line, 4, 2);
  let told = 0;
  const say = (end: number, kind: number) => {
    if (end <= told) return;
    if (parts.at(-1) === kind) parts[parts.length - 2] = (parts[parts.length - 2] ?? 0) + end - told;
    else parts.push(end - told, kind);
    told = end;
  };
  if (line === "") parser.blankLine?.(state, 2);
  for (let still = 0; !stream.eol() && still < 10; still += 1) {
    stream.start = stream.pos;
    const style = parser.token(stream, state);
    if (stream.pos === stream.start) continue;
    still = -1;
    say(stream.pos, KINDS.indexOf(kindOf(style)));
    if (parts.length > 2 * MOST_PARTS) break;
  }
  return parts;
}

/** The parts of groups of lines; each group begins anew. After `ms` the rest stays plain. */
export function tokensOf(
  parser: StreamParser<unknown>,
  groups: string[][],
  ms: number,
  now: () => number = () => performance.now(),
): LineTokens[][] {
  const until = now() + ms;
  let lines = 0;
  let late = false;
  return groups.map((group) => {
    let state = parser.startState?.(2) ?? {};
    return group.map((line) => {
      lines += 1;
      if (lines % EVERY === 0) late ||= now() > until;
      if (late || line.length > LONGEST_LINE) return [];
      try {
        return ofLine(parser, state, line);
      } catch {
        state = parser.startState?.(2) ?? {};
        return [];
      }
    });
  });
}
