// What an execution wrote, as text that can be trusted to look like what it is.
import type { Schemas } from "../api/client";
import { paragraphs } from "../ui/format";

export type Piece = Schemas["Piece"];

export function pieceText(piece: Piece): string {
  if (piece.text !== null && piece.text !== undefined) return paragraphs(piece.text);
  if (piece.base64 !== null && piece.base64 !== undefined)
    return `[${Math.floor((piece.base64.length * 3) / 4)} bytes that are not text]`;
  return piece.missing_bytes ? `\n[${piece.missing_bytes} bytes were dropped]\n` : "";
}

/** The newest of a row of texts: as many as fit, the last one whatever its length. */
export function newest<T extends { text: string }>(texts: T[], mostCharacters: number): T[] {
  let left = mostCharacters;
  let first = texts.length;
  while (first > 0 && left > 0) {
    first -= 1;
    left -= texts[first]?.text.length ?? 0;
  }
  const kept = texts.slice(first);
  const head = kept[0];
  if (head !== undefined && left < 0) kept[0] = { ...head, text: head.text.slice(-left) };
  return kept;
}
