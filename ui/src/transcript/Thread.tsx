// The entries of a transcript, drawn as far as they are seen, following the end unless the reader has scrolled away from it.
import { useEffect, useMemo, useRef, useState } from "react";
import { useVirtualizer } from "@tanstack/react-virtual";
import { ArrowDown } from "lucide-react";
import { Button } from "../ui/Button";
import { toastError } from "../ui/feedback";
import { wordsOf, type Entry } from "./entries";
import { EntryView } from "./EntryView";
import type { Transcript } from "./useTranscript";

type Row = { key: string; heading: string } | { key: string; entry: Entry };

/** A heading where a turn begins. */
function rowsOf(entries: Entry[], isTask: boolean): Row[] {
  const rows: Row[] = [];
  let turn = "";
  for (const entry of entries) {
    const here = `${entry.attempt}.${entry.turn}`;
    if (isTask && here !== turn) rows.push({ key: here, heading: `Attempt ${entry.attempt}, turn ${entry.turn}` });
    turn = here;
    rows.push({ key: String(entry.sequence), entry });
  }
  return rows;
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
    return rowsOf(shown, turns);
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
                    {row.heading}
                    <span aria-hidden className="h-px flex-1 bg-line" />
                  </h3>
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
          To the end
        </Button>
      )}
    </div>
  );
}
