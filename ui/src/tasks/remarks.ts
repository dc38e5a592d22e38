// Comments on lines of a diff, as the agent is told of them and as they are found again.
import type { Schemas } from "../api/client";
import type { NewRemark } from "../repositories/PatchLines";

type Message = Schemas["Message"];
type NewMessage = Schemas["NewMessage"];
type Remark = Schemas["InlineComment"];

const REMOVED = /^About line (\d+) of it as it was before, which is removed:\n(?:> .*\n)?\n/;
const LONGEST_QUOTE = 300;

/**
 * A message about a line. The number of a line that was removed is not one of the file as it is now, where an agent
 * would look for it: it is told in words instead, with the line itself.
 */
export function toMessage({ path, line, side, body }: NewRemark, text: string): NewMessage {
  if (side === "right") return { body, file: path, line };
  const quote = text.trim() === "" ? "" : `> ${text.slice(0, LONGEST_QUOTE)}\n`;
  return { body: `About line ${line} of it as it was before, which is removed:\n${quote}\n${body}`, file: path };
}

/** Where in the diff a message stands; nowhere once an attempt has read it, for then the lines are others. */
export function toRemark(message: Message): Remark | undefined {
  const { file, line } = (message.about ?? {}) as { file?: unknown; line?: unknown };
  if (typeof file !== "string" || message.run_id) return undefined;
  const { number, author, body, created_at } = message;
  const remark = { id: `message-${number}`, author, created_at, path: file };
  if (typeof line === "number") return { ...remark, line, side: "right", body };
  const removed = REMOVED.exec(body);
  return removed === null
    ? undefined
    : { ...remark, line: Number(removed[1]), side: "left", body: body.slice(removed[0].length) };
}
