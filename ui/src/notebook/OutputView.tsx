// What a cell has printed, shown and raised. It is hostile: text is text, pictures are pictures, HTML is in a frame that may
// do nothing, and no script of it runs anywhere.
import { useState } from "react";
import { Download } from "lucide-react";
import { saveAnswer } from "../api/files";
import { useDark } from "../shell/theme";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { toastError } from "../ui/feedback";
import { paragraphs, plainText } from "../ui/format";
import { Markdown } from "../ui/Markdown";
import type { Output } from "./cells";
import {
  cellText,
  FRAME_RIGHTS,
  frameDocument,
  frameHeight,
  views,
  type CodeError,
  type Frame,
  type Result,
  type View,
} from "./results";

const ROWS = 50;
const COLUMNS = 40;

function FrameTable({ frame, label }: { frame: Frame; label: string }) {
  const [most, setMost] = useState(ROWS);
  const shown = frame.slice(0, COLUMNS);
  const rows = Math.max(0, ...shown.map(([, values]) => values.length));
  return (
    <div className="min-w-0">
      <div
        className="max-h-96 w-fit max-w-full overflow-auto rounded-md border border-line"
        role="region"
        aria-label={label}
        tabIndex={0}
      >
        <table className="border-collapse text-xs">
          <thead className="sticky top-0 bg-raised">
            <tr>
              <th scope="col" className="px-2 py-1 text-right font-medium text-dim">
                <span className="sr-only">Row</span>
              </th>
              {shown.map(([name], at) => (
                <th key={at} scope="col" className="px-3 py-1 text-left font-semibold whitespace-nowrap">
                  {plainText(name)}
                </th>
              ))}
            </tr>
          </thead>
          <tbody className="divide-y divide-line font-mono">
            {Array.from({ length: Math.min(rows, most) }, (_, row) => (
              <tr key={row}>
                <th scope="row" className="px-2 py-1 text-right font-normal text-dim">
                  {row}
                </th>
                {shown.map(([, values], at) => (
                  <td
                    key={at}
                    className={classes("max-w-80 truncate px-3 py-1", typeof values[row] === "number" && "text-right")}
                  >
                    {plainText(cellText(values[row]))}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p className="mt-1 flex flex-wrap items-center gap-2 text-xs text-dim">
        {rows} {rows === 1 ? "row" : "rows"}, {frame.length} {frame.length === 1 ? "column" : "columns"}
        {frame.length > COLUMNS && `; the first ${COLUMNS} are shown`}
        {rows > most && (
          <Button tone="ghost" className="h-6 px-2 text-xs" onClick={() => setMost(most + 500)}>
            Show more rows
          </Button>
        )}
      </p>
    </div>
  );
}

function Html({ html }: { html: string }) {
  const dark = useDark();
  return (
    <div className="resize-y overflow-hidden rounded-md border border-line" style={{ height: frameHeight(html) }}>
      <iframe
        title="HTML that the code has shown"
        sandbox={FRAME_RIGHTS}
        referrerPolicy="no-referrer"
        srcDoc={frameDocument(html, dark)}
        className="size-full"
      />
    </div>
  );
}

function savePdf(base64: string) {
  const bytes = Uint8Array.from(atob(base64.replace(/\s/g, "")), (letter) => letter.charCodeAt(0));
  return saveAnswer(new Response(bytes), "result.pdf");
}

function Shown({ view }: { view: View }) {
  switch (view.kind) {
    case "table":
      return <FrameTable frame={view.frame} label="Table" />;
    case "chart":
      return <FrameTable frame={view.frame} label={`Data of the chart ${plainText(view.title)}`} />;
    case "picture":
      // Charts are drawn for white paper.
      return (
        <img src={view.address} alt="Picture that the code has shown" className="max-w-full rounded-md bg-white" />
      );
    case "html":
      return <Html html={view.html} />;
    case "prose":
      return <Markdown text={view.text} />;
    case "pdf":
      return (
        <Button
          onClick={() => void savePdf(view.base64).catch(toastError)}
          icon={<Download aria-hidden className="size-4" />}
        >
          Download the PDF
        </Button>
      );
    case "text":
      return <Text text={view.text} label="Result" />;
  }
}

function Text({ text, label, className }: { text: string; label: string; className?: string }) {
  return (
    <pre
      tabIndex={0}
      aria-label={label}
      className={classes("max-h-96 overflow-auto font-mono text-xs break-words whitespace-pre-wrap", className)}
    >
      {paragraphs(text)}
    </pre>
  );
}

function ResultView({ result }: { result: Result }) {
  const all = views(result);
  const [chosen, choose] = useState(0);
  const view = all[chosen] ?? all[0];
  if (view === undefined) return null;
  return (
    <div className="min-w-0 space-y-1">
      {all.length > 1 && (
        <div className="flex flex-wrap gap-1" role="group" aria-label="Show the result as">
          {all.map((one, at) => (
            <button
              key={one.name}
              type="button"
              aria-pressed={one === view}
              onClick={() => choose(at)}
              className={classes(
                "rounded px-1.5 py-0.5 text-xs",
                one === view ? "bg-accent-soft font-medium text-accent" : "text-dim hover:text-ink",
              )}
            >
              {one.name}
            </button>
          ))}
        </div>
      )}
      <Shown view={view} />
    </div>
  );
}

function ErrorView({ error }: { error: CodeError }) {
  return (
    <div role="alert" className="min-w-0 rounded-md border border-bad/40 bg-bad-soft p-3">
      <p className="font-mono text-xs font-semibold break-words text-bad">
        {plainText(error.name)}
        {error.value !== "" && `: ${paragraphs(error.value)}`}
      </p>
      {error.traceback !== "" && (
        <details className="mt-1">
          <summary className="text-xs text-ink">Traceback</summary>
          <Text text={error.traceback} label="Traceback" className="mt-1 text-ink" />
        </details>
      )}
    </div>
  );
}

export function OutputView({ output }: { output: Output }) {
  switch (output.kind) {
    case "stdout":
      return <Text text={output.text} label="Output" />;
    case "stderr":
      return <Text text={output.text} label="Errors that were printed" className="text-warn" />;
    case "result":
      return <ResultView result={output.result} />;
    case "error":
      return <ErrorView error={output.error} />;
    case "note":
      return <p className="text-xs text-dim">{plainText(output.text)}</p>;
  }
}
