// Text of a program, coloured once its colours are known. It is text all the time: colours only cut it into parts.
import { useMemo, type ReactNode } from "react";
import { plainText } from "../ui/format";
import "./code.css";
import { useTokens } from "./highlight";
import { KINDS, type LineTokens } from "./tokens";

/** More of one line is not drawn. */
const MOST_DRAWN = 2000;

/** A part of a line that differs from its counterpart. */
export interface Mark {
  from: number;
  to: number;
  look: string;
}

/** A line in its parts; a part without a colour is bare text. */
export function lineParts(line: string, tokens: LineTokens | undefined, mark?: Mark): ReactNode {
  const text = line.slice(0, MOST_DRAWN);
  if (tokens === undefined && mark === undefined) return plainText(text);
  const parts: ReactNode[] = [];
  const piece = (from: number, to: number, kind: string, marked: string | undefined) => {
    const words = plainText(text.slice(from, to));
    if (words === "") return;
    const look = [kind === "" ? undefined : `hl-${kind}`, marked].filter(Boolean).join(" ");
    parts.push(
      look === "" ? (
        words
      ) : (
        <span key={from} className={look}>
          {words}
        </span>
      ),
    );
  };
  const say = (from: number, to: number, kind: string) => {
    if (mark === undefined || mark.to <= from || mark.from >= to) return piece(from, to, kind, undefined);
    piece(from, Math.max(from, mark.from), kind, undefined);
    piece(Math.max(from, mark.from), Math.min(to, mark.to), kind, mark.look);
    piece(Math.min(to, mark.to), to, kind, undefined);
  };
  let at = 0;
  for (let place = 0; place + 1 < (tokens?.length ?? 0) && at < text.length; place += 2) {
    const end = Math.min(text.length, at + (tokens?.[place] ?? 0));
    say(at, end, KINDS[tokens?.[place + 1] ?? 0] ?? "");
    at = end;
  }
  if (at < text.length) say(at, text.length, "");
  return parts;
}

/** A block of a program. */
export function CodeLines({ text, language }: { text: string; language: string | undefined }) {
  const groups = useMemo(() => [text.split("\n")], [text]);
  const tokens = useTokens(language, groups)?.[0];
  return groups[0]?.map((line, at) => (
    <span key={at}>
      {at > 0 && "\n"}
      {tokens?.[at] === undefined || tokens[at].length === 0 ? plainText(line) : lineParts(line, tokens[at])}
    </span>
  ));
}
