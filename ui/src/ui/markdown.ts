// Reads the part of Markdown that carries meaning, into plain data. Nothing in it is markup of its own: HTML stays text, and
// only http and https addresses become links.

export type Inline =
  | { kind: "text"; text: string }
  | { kind: "code"; text: string }
  | { kind: "strong" | "emphasis" | "struck"; children: Inline[] }
  | { kind: "link"; href: string; children: Inline[] };

export type Block =
  | { kind: "paragraph"; inlines: Inline[] }
  | { kind: "heading"; level: number; inlines: Inline[] }
  | { kind: "code"; language: string; text: string }
  | { kind: "quote"; blocks: Block[] }
  | { kind: "list"; ordered: boolean; first: number; items: { done?: boolean; blocks: Block[] }[] }
  | { kind: "table"; head: Inline[][]; rows: Inline[][][] }
  | { kind: "rule" };

/** Text nests as deep as people do; a hostile one does not get further. */
const DEEPEST = 6;
const INLINE =
  /`([^`]+)`|\*\*(?=\S)(.+?\S)\*\*|__(?=\S)(.+?\S)__|~~(?=\S)(.+?\S)~~|(?<![\w*])\*(?=[^\s*])([^*]*[^\s*])\*(?!\w)|(?<!\w)_(?=[^\s_])([^_]*[^\s_])_(?!\w)|!?\[([^\]]*)\]\((\S+?)(?:\s+"[^"]*")?\)|<?(https?:\/\/[^\s<>()"'`]+[^\s<>()"'`.,;:!?])>?/;

export function safeAddress(text: string): string | undefined {
  if (!/^https?:\/\//i.test(text) || !URL.canParse(text)) return undefined;
  const { href, protocol, username } = new URL(text);
  // An address with a name before the host looks like another host.
  return ["http:", "https:"].includes(protocol) && username === "" ? href : undefined;
}

export function inlines(text: string, depth = 0): Inline[] {
  const found: Inline[] = [];
  let rest = text;
  const say = (words: string) => words !== "" && found.push({ kind: "text", text: words });
  while (rest !== "") {
    const match = depth < DEEPEST ? INLINE.exec(rest) : null;
    if (match === null) {
      say(rest);
      break;
    }
    say(rest.slice(0, match.index));
    rest = rest.slice(match.index + match[0].length);
    const [all, code, strong, strong2, struck, emphasis, emphasis2, words, address, bare] = match;
    const inside = (inner: string) => inlines(inner, depth + 1);
    if (code !== undefined) found.push({ kind: "code", text: code });
    else if (strong ?? strong2) found.push({ kind: "strong", children: inside(strong ?? strong2 ?? "") });
    else if (struck !== undefined) found.push({ kind: "struck", children: inside(struck) });
    else if (emphasis ?? emphasis2) found.push({ kind: "emphasis", children: inside(emphasis ?? emphasis2 ?? "") });
    else {
      const href = safeAddress(bare ?? address ?? "");
      if (href === undefined) say(all);
      else
        found.push({
          kind: "link",
          href,
          children: bare === undefined ? inside(words || href) : [{ kind: "text", text: bare }],
        });
    }
  }
  return found;
}

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*).*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const ITEM = /^( {0,9})([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ROW = /^\s*\|.*\|\s*$/;
const DASHES = /^:?-+:?$/;

const cells = (line: string) =>
  line
    .trim()
    .replace(/^\||\|$/g, "")
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim().replaceAll("\\|", "|"));

export function parseMarkdown(text: string, depth = 0): Block[] {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const blocks: Block[] = [];
  let words: string[] = [];
  const flush = () => {
    if (words.length > 0) blocks.push({ kind: "paragraph", inlines: inlines(words.join("\n")) });
    words = [];
  };
  /** Takes lines from `at` on for as long as they fit, and answers where it stopped. */
  const while_ = (at: number, fits: (line: string) => boolean) => {
    let end = at;
    while (end < lines.length && fits(lines[end] ?? "")) end += 1;
    return end;
  };
  for (let at = 0; at < lines.length;) {
    const line = lines[at] ?? "";
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    const item = ITEM.exec(line);
    if (fence !== null) {
      flush();
      const end = while_(at + 1, (one) => !one.trimStart().startsWith(fence[1] ?? "```"));
      blocks.push({ kind: "code", language: fence[2] ?? "", text: lines.slice(at + 1, end).join("\n") });
      at = end + 1;
    } else if (line.trim() === "") {
      flush();
      at += 1;
    } else if (heading !== null) {
      flush();
      blocks.push({ kind: "heading", level: heading[1]?.length ?? 1, inlines: inlines(heading[2] ?? "") });
      at += 1;
    } else if (RULE.test(line)) {
      flush();
      blocks.push({ kind: "rule" });
      at += 1;
    } else if (line.trimStart().startsWith(">") && depth < DEEPEST) {
      flush();
      const end = while_(at, (one) => one.trimStart().startsWith(">"));
      const inner = lines.slice(at, end).map((one) => one.trimStart().replace(/^>\s?/, ""));
      blocks.push({ kind: "quote", blocks: parseMarkdown(inner.join("\n"), depth + 1) });
      at = end;
    } else if (ROW.test(line)) {
      flush();
      const end = while_(at, (one) => ROW.test(one));
      const rows = lines.slice(at, end).map(cells);
      const hasHead = rows[1]?.every((cell) => DASHES.test(cell)) === true;
      const show = (row: string[]) => row.map((cell) => inlines(cell));
      blocks.push({
        kind: "table",
        head: hasHead ? show(rows[0] ?? []) : [],
        rows: rows
          .slice(hasHead ? 2 : 0)
          .filter((row) => row.some((cell) => cell !== ""))
          .map(show),
      });
      at = end;
    } else if (item !== null && depth < DEEPEST) {
      flush();
      const ordered = /\d/.test(item[2] ?? "");
      const indent = item[1]?.length ?? 0;
      const list: Extract<Block, { kind: "list" }> = {
        kind: "list",
        ordered,
        first: ordered ? Number.parseInt(item[2] ?? "1", 10) : 1,
        items: [],
      };
      for (;;) {
        const next = ITEM.exec(lines[at] ?? "");
        if (next === null || (next[1]?.length ?? 0) > indent + 1 || /\d/.test(next[2] ?? "") !== ordered) break;
        const inner = (one: string) => one.trim() !== "" && /^\s{2,}/.test(one) && one.search(/\S/) > indent;
        const end = while_(at + 1, inner);
        const box = /^\[([ xX])\]\s+(.*)$/s.exec(next[3] ?? "");
        const body = [
          box?.[2] ?? next[3] ?? "",
          ...lines.slice(at + 1, end).map((one) => one.slice(Math.min(one.search(/\S/), indent + 2))),
        ];
        list.items.push({
          ...(box === null ? {} : { done: box[1] !== " " }),
          blocks: parseMarkdown(body.join("\n"), depth + 1),
        });
        at = end;
      }
      blocks.push(list);
    } else {
      words.push(line);
      at += 1;
    }
  }
  flush();
  return blocks;
}
