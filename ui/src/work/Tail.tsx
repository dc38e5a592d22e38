// The newest of what an execution wrote, growing while it runs. It is asked for and not streamed: several stand side by
// side, and browsers open six connections to a server at most.
import { useEffect, useRef, useState } from "react";
import { api, take, ApiError } from "../api/client";
import { newest, pieceText } from "../sandbox/pieces";
import { classes } from "../ui/classes";
import { described } from "../ui/feedback";

const AGAIN_MS = 1200;
const MOST_CHARACTERS = 48 * 1024;
/** What is read at first. As JSON, with its ends of lines and headers, it is two to three times as much. */
const TAIL_BYTES = 32 * 1024;

interface Part {
  key: string;
  text: string;
  bad: boolean;
}

function useTail(execution: string) {
  const [parts, setParts] = useState<Part[]>([]);
  const [over, setOver] = useState(false);
  const [trouble, setTrouble] = useState<string>();
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let cursor: string | undefined;
    const stop = new AbortController();
    setParts([]);
    setOver(false);
    const step = async () => {
      let wait = AGAIN_MS;
      try {
        // What nobody sees is not asked for.
        if (!document.hidden) {
          const params = { path: { execution }, query: cursor === undefined ? { tail: TAIL_BYTES } : { cursor } };
          const page = await take(api.GET("/api/v1/executions/{execution}/output", { params, signal: stop.signal }));
          if (stop.signal.aborted) return;
          const fresh = page.items.map((piece) => ({
            key: `${piece.stream}${piece.offset}${piece.kind}`,
            text: pieceText(piece),
            bad: piece.stream === "stderr",
          }));
          if (fresh.length > 0) setParts((all) => newest([...all, ...fresh], MOST_CHARACTERS));
          setTrouble(undefined);
          if (page.next === null || page.next === undefined) return setOver(true);
          cursor = page.next;
          if (page.items.length > 0) wait = 0;
        }
      } catch (failed) {
        if (stop.signal.aborted) return;
        setTrouble(described(failed).title);
        // What is gone stays gone; a server that is away comes back.
        if (failed instanceof ApiError && failed.status >= 400 && failed.status < 500 && failed.status !== 429)
          return setOver(true);
      }
      timer = setTimeout(() => void step(), wait);
    };
    void step();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [execution]);
  return { parts, over, trouble };
}

export function Tail({ execution, label, className }: { execution: string; label: string; className?: string }) {
  const { parts, over, trouble } = useTail(execution);
  const box = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  useEffect(() => {
    if (atEnd.current && box.current !== null) box.current.scrollTop = box.current.scrollHeight;
  }, [parts]);
  return (
    <pre
      ref={box}
      role="log"
      aria-label={label}
      aria-live="off"
      tabIndex={0}
      onScroll={({ currentTarget: at }) => {
        atEnd.current = at.scrollHeight - at.scrollTop - at.clientHeight < 24;
      }}
      className={classes("overflow-auto bg-raised p-3 font-mono text-xs break-words whitespace-pre-wrap", className)}
    >
      {parts.map((part) => (
        <span key={part.key} className={part.bad ? "text-bad" : undefined}>
          {part.text}
        </span>
      ))}
      {parts.length === 0 && trouble === undefined && (
        <span className="text-dim">{over ? "No output." : "No output yet."}</span>
      )}
      {trouble !== undefined && <span className="text-dim">{trouble}</span>}
    </pre>
  );
}
