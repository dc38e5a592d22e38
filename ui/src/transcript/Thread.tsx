// The entries of a transcript, drawn as far as they are seen, following the end unless the reader has scrolled away from it.
import { useEffect, useMemo, useRef, useState } from "react";
import { useVirtualizer } from "@tanstack/react-virtual";
import { ArrowDown, ChevronRight, ListTree } from "lucide-react";
import { Button } from "../ui/Button";
import { toastError } from "../ui/feedback";
import { span } from "../ui/format";
import { wordsOf, type Entry } from "./entries";
import { EntryView } from "./EntryView";
import { summaryOf, threadRows } from "./steps";
import type { Transcript } from "./useTranscript";

function Steps({ steps }: { steps: Entry[] }) {
  const [shown, setShown] = useState(false);
  return (
    <details
      data-entry="steps"
      open={shown}
      onToggle={({ currentTarget }) => setShown(currentTarget.open)}
      className="group/steps"
    >
      <summary className="flex list-none items-center gap-2 rounded-md px-2 py-1 text-dim hover:bg-raised [&::-webkit-details-marker]:hidden">
        <ListTree aria-hidden className="size-4 shrink-0" />
        <span className="min-w-0 flex-1 truncate">{summaryOf(steps)}</span>
        <ChevronRight aria-hidden className="size-3.5 shrink-0 group-open/steps:rotate-90" />
      </summary>
      {shown && (
        <div className="ml-4 border-l border-line pl-2">
          {steps.map((entry) => (
            <EntryView key={entry.sequence} entry={entry} />
          ))}
        </div>
      )}
    </details>
  );
}

const NEAR_END = 60;

interface Props {
  transcript: Transcript;
  label: string;
  search?: string;
  /** Whether to say which attempt and turn an entry is of. */
  turns?: boolean;
  className?: string;
}

export function Thread({ transcript, label, search = "", turns = true, className }: Props) {
  const { entries, earlier } = transcript;
  const box = useRef<HTMLDivElement>(null);
  const [following, setFollowing] = useState(true);
  const [busy, setBusy] = useState(false);
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = useMemo(() => {
    const shown =
      words.length === 0
        ? entries
        : entries.filter((entry) => {
            const text = wordsOf(entry).toLowerCase();
            return words.every((word) => text.includes(word));
          });
    return threadRows(shown, { turns, folds: words.length === 0 });
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [entries, search, turns]);
  const list = useVirtualizer({
    count: rows.length,
    getScrollElement: () => box.current,
    estimateSize: () => 36,
    overscan: 12,
    getItemKey: (at) => rows[at]?.key ?? at,
  });
  useEffect(() => {
    if (following && rows.length > 0) list.scrollToIndex(rows.length - 1, { align: "end" });
  }, [rows, following, list]);
  return (
    <div className={`relative flex min-h-0 flex-col ${className ?? ""}`}>
      <div
        ref={box}
        role="log"
        aria-label={label}
        aria-live="off"
        tabIndex={0}
        onScroll={({ currentTarget: at }) => {
          setFollowing(at.scrollHeight - at.scrollTop - at.clientHeight < NEAR_END);
        }}
        className="min-h-0 flex-1 overflow-y-auto p-2"
      >
        {earlier !== undefined && (
          <div className="flex justify-center py-1">
            <Button
              busy={busy}
              onClick={() => {
                setBusy(true);
                setFollowing(false);
                earlier()
                  .catch(toastError)
                  .finally(() => setBusy(false));
              }}
            >
              Show earlier
            </Button>
          </div>
        )}
        <div className="relative w-full" style={{ height: list.getTotalSize() }}>
          {list.getVirtualItems().map((item) => {
            const row = rows[item.index];
            if (row === undefined) return null;
            return (
              <div
                key={item.key}
                data-index={item.index}
                ref={list.measureElement}
                className="absolute top-0 left-0 w-full pb-1"
                style={{ transform: `translateY(${item.start}px)` }}
              >
                {"heading" in row ? (
                  <h3 className="flex items-center gap-3 py-2 text-xs font-medium text-dim">
                    <span aria-hidden className="h-px flex-1 bg-line" />
                    <span>
                      {row.heading}
                      {row.took !== undefined && row.took >= 1000 && (
                        <span className="font-normal"> · {span(row.took)}</span>
                      )}
                    </span>
                    <span aria-hidden className="h-px flex-1 bg-line" />
                  </h3>
                ) : "steps" in row ? (
                  <Steps steps={row.steps} />
                ) : (
                  <EntryView entry={row.entry} />
                )}
              </div>
            );
          })}
        </div>
        {rows.length === 0 && (
          <p className="p-4 text-center text-dim">{search !== "" ? "No entry has these words." : "No activity yet."}</p>
        )}
      </div>
      {!following && (
        <Button
          className="absolute right-4 bottom-3 shadow-md"
          onClick={() => setFollowing(true)}
          icon={<ArrowDown aria-hidden className="size-4" />}
        >
          Jump to latest
        </Button>
      )}
    </div>
  );
}
