// Text that people and agents write, as they meant it to look. All of it is hostile: it becomes text, never markup.
import { memo, useMemo, type ReactNode } from "react";
import { Check, Square } from "lucide-react";
import { CodeLines } from "../code/Code";
import { languageOfWord } from "../code/languages";
import { paragraphs, plainText } from "./format";
import { inlines, parseMarkdown, type Block, type Inline } from "./markdown";

function inline(parts: Inline[]): ReactNode {
  return parts.map((part, at) => {
    switch (part.kind) {
      case "text":
        return <span key={at}>{paragraphs(part.text)}</span>;
      case "code":
        return (
          <code key={at} className="rounded bg-raised px-1 py-px font-mono text-[0.9em] break-words">
            {plainText(part.text)}
          </code>
        );
      case "strong":
        return <strong key={at}>{inline(part.children)}</strong>;
      case "emphasis":
        return <em key={at}>{inline(part.children)}</em>;
      case "struck":
        return <s key={at}>{inline(part.children)}</s>;
      case "link":
        return (
          <a
            key={at}
            href={part.href}
            title={part.href}
            target="_blank"
            rel="noopener noreferrer"
            className="break-words text-accent underline"
          >
            {inline(part.children)}
          </a>
        );
    }
  });
}

function Item({ done, children }: { done?: boolean; children: ReactNode }) {
  if (done === undefined) return <li className="pl-1">{children}</li>;
  const Box = done ? Check : Square;
  return (
    <li className="-ml-5 flex list-none gap-1.5">
      <Box aria-hidden className="mt-0.5 size-4 shrink-0 text-dim" />
      <span className="sr-only">{done ? "done:" : "to do:"}</span>
      <div className="min-w-0 flex-1">{children}</div>
    </li>
  );
}

function block(one: Block, at: number): ReactNode {
  switch (one.kind) {
    case "paragraph":
      return (
        <p key={at} className="break-words whitespace-pre-line">
          {inline(one.inlines)}
        </p>
      );
    case "heading":
      return (
        <p key={at} className={one.level <= 2 ? "pt-1 text-base font-semibold" : "pt-1 font-semibold"}>
          {inline(one.inlines)}
        </p>
      );
    case "code":
      return (
        <pre key={at} tabIndex={0} className="overflow-x-auto rounded-md bg-raised p-3 font-mono text-xs">
          <CodeLines text={one.text} language={languageOfWord(one.language)} />
        </pre>
      );
    case "quote":
      return (
        <blockquote key={at} className="space-y-1 border-l-2 border-line pl-3 text-dim">
          {one.blocks.map(block)}
        </blockquote>
      );
    case "rule":
      return <hr key={at} className="border-line" />;
    case "list": {
      const items = one.items.map((item, place) => (
        <Item key={place} done={item.done}>
          {item.blocks.map(block)}
        </Item>
      ));
      return one.ordered ? (
        <ol key={at} start={one.first} className="list-decimal space-y-0.5 pl-6">
          {items}
        </ol>
      ) : (
        <ul key={at} className="list-disc space-y-0.5 pl-6">
          {items}
        </ul>
      );
    }
    case "table":
      return (
        <div key={at} className="overflow-x-auto" tabIndex={0} role="region" aria-label="Table">
          <table className="border-collapse text-sm">
            {one.head.some((cell) => cell.length > 0) && (
              <thead>
                <tr>
                  {one.head.map((cell, place) => (
                    <th key={place} scope="col" className="border border-line px-2 py-1 text-left font-medium">
                      {inline(cell)}
                    </th>
                  ))}
                </tr>
              </thead>
            )}
            <tbody>
              {one.rows.map((row, place) => (
                <tr key={place}>
                  {row.map((cell, column) => (
                    <td key={column} className="border border-line px-2 py-1 align-top">
                      {inline(cell)}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      );
  }
}

/** One line, such as a title: its code and emphasis, without links. */
export function InlineMarkdown({ text }: { text: string }) {
  return inline(withoutLinks(inlines(text.slice(0, 500))));
}

function withoutLinks(parts: Inline[]): Inline[] {
  return parts.flatMap((part) => {
    if (part.kind === "link") return withoutLinks(part.children);
    return "children" in part ? [{ ...part, children: withoutLinks(part.children) }] : [part];
  });
}

export const Markdown = memo(function Markdown({ text, className }: { text: string; className?: string }) {
  const blocks = useMemo(() => parseMarkdown(text.slice(0, 64_000)), [text]);
  return <div className={`space-y-2 ${className ?? ""}`}>{blocks.map(block)}</div>;
});
