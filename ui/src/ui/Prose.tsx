// Text that people and agents write for forges, with the little of Markdown that carries meaning: tables of two columns,
// quotes and code. Everything is shown as text; nothing in it becomes a link, a picture or markup of its own.
import { Fragment, type ReactNode } from "react";
import { plainText } from "./format";

const cells = (line: string) =>
  line
    .trim()
    .replace(/^\||\|$/g, "")
    .split("|")
    .map((cell) => cell.trim());

function inline(text: string): ReactNode {
  return plainText(text)
    .split(/`([^`]+)`/)
    .map((part, at) =>
      at % 2 === 1 ? (
        <code key={at} className="font-mono text-xs">
          {part}
        </code>
      ) : (
        <Fragment key={at}>{part}</Fragment>
      ),
    );
}

export function Prose({ text, className }: { text: string; className?: string }) {
  const blocks: ReactNode[] = [];
  let rows: string[][] = [];
  const flush = () => {
    const said = rows.filter((row) => row.some((cell) => cell !== "" && !/^:?-+:?$/.test(cell)));
    if (said.length > 0) {
      blocks.push(
        <dl key={blocks.length} className="my-1 grid grid-cols-[auto_minmax(0,1fr)] gap-x-4 gap-y-1">
          {said.map(([name, ...rest], at) => (
            <Fragment key={at}>
              <dt className="text-dim">{inline(name ?? "")}</dt>
              <dd className="break-words">{inline(rest.join(" | "))}</dd>
            </Fragment>
          ))}
        </dl>,
      );
    }
    rows = [];
  };
  for (const line of text.split("\n")) {
    if (/^\s*\|.*\|\s*$/.test(line)) {
      rows.push(cells(line));
      continue;
    }
    flush();
    if (line.trim() === "") continue;
    const quoted = /^>\s?(.*)$/.exec(line);
    blocks.push(
      <p
        key={blocks.length}
        className={quoted === null ? "break-words" : "border-l-2 border-line pl-3 break-words text-dim"}
      >
        {inline(quoted?.[1] ?? line)}
      </p>,
    );
  }
  flush();
  return <div className={`space-y-1 ${className ?? ""}`}>{blocks}</div>;
}
