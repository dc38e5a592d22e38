// The changed lines of one file. What is far from what is seen is left out of the page and keeps its place.
import { memo, useCallback, useEffect, useMemo, useRef, useState, type ReactNode } from "react";
import { useQuery } from "@tanstack/react-query";
import { api, take } from "../api/client";
import { lineParts, type Mark } from "../code/Code";
import { useTokens } from "../code/highlight";
import { languageOfPath } from "../code/languages";
import type { LineTokens } from "../code/tokens";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { plainText } from "../ui/format";
import { useNear } from "./near";
import type { PatchFile, PatchLine } from "./patch";
import { expanded, groupsOf, MORE, rowOfPlace, rowsOf, SLAB, type Row, type Shown } from "./rows";
import { ThreadView, WordsForm } from "./ThreadView";
import { threadsOf, type Remark, type Thread, type ThreadActions } from "./threads";
import { partsOf, type Part } from "./words";

export const LINE_HEIGHT = 20;
/** About half a screen. */
const NEAR = 450;

export interface NewRemark {
  path: string;
  line: number;
  side: "left" | "right";
  body: string;
}

export interface DraftRemark {
  remark: NewRemark;
  /** The line that it is about. */
  text: string;
}

/** Where the whole of a changed file can be read. */
export interface Source {
  repository: string;
  commit: string;
}

export interface LinesProps {
  file: PatchFile;
  remarks?: Remark[];
  drafts?: DraftRemark[];
  /** Called with the line that it is about, too. */
  onRemark?: (remark: NewRemark, text: string) => Promise<unknown>;
  onDraft?: (draft: DraftRemark) => void;
  threads?: ThreadActions;
  label?: string;
  split?: boolean;
  source?: Source;
  /** A line to go to, once: `R12`. */
  goTo?: string;
  /** Begins addresses of its lines. */
  anchor?: string;
}

type Place = { line: number; side: "left" | "right" };

function placeOf(line: PatchLine): Place | undefined {
  if (line.now !== undefined) return { line: line.now, side: "right" };
  return line.old === undefined ? undefined : { line: line.old, side: "left" };
}

const keyOf = (place: Place) => `${place.side === "left" ? "L" : "R"}${place.line}`;

const LOOKS = { added: "bg-ok-soft", removed: "bg-bad-soft", context: "", note: "" };
const MARKED = { added: "rounded-xs bg-ok/20", removed: "rounded-xs bg-bad/20", context: "", note: "" };
const SIGNS = { added: "+", removed: "-", context: " ", note: " " };
const SAID = { added: "added", removed: "removed", context: "", note: "" };
const NUMBER = "w-11 shrink-0 pr-2 text-right text-dim select-none";

function markOf(line: PatchLine, parts: Part[] | undefined): Mark | undefined {
  if (parts === undefined) return undefined;
  let at = 0;
  for (const part of parts) {
    if (part.changed) return { from: at, to: at + part.text.length, look: MARKED[line.kind] };
    at += part.text.length;
  }
  return undefined;
}

/** What the lines of a file need to be drawn; it changes seldom. */
interface Drawing {
  colours: Map<PatchLine, LineTokens>;
  parts: Map<PatchLine, Part[]>;
  talk: Map<string, Thread[]>;
  drafts: Map<string, DraftRemark[]>;
  path: string;
  anchor?: string;
  at?: string;
  threads?: ThreadActions;
  onRemark?: LinesProps["onRemark"];
  onDraft?: LinesProps["onDraft"];
}

function Below({
  line,
  drawing,
  writing,
  onClose,
}: {
  line: PatchLine;
  drawing: Drawing;
  writing: boolean;
  onClose: () => void;
}) {
  const place = placeOf(line);
  if (place === undefined) return null;
  const { path, onRemark, onDraft } = drawing;
  const key = keyOf(place);
  return (
    <>
      {drawing.talk.get(key)?.map((thread) => (
        <ThreadView key={thread.first.id} thread={thread} actions={drawing.threads} />
      ))}
      {drawing.drafts.get(key)?.map(({ remark }, at) => (
        <div key={at} className="border-y border-line bg-warn-soft px-4 py-2 font-sans text-sm whitespace-normal">
          <p className="text-xs font-medium text-warn">Not sent yet</p>
          <p className="whitespace-pre-wrap">{remark.body}</p>
        </div>
      ))}
      {writing && onRemark !== undefined && (
        <div className="border-y border-line bg-surface">
          <div className="sticky left-0 max-w-[min(48rem,calc(100vw-2rem))] p-3">
            <WordsForm
              label="Comment on this line"
              action="Comment"
              onSend={(body) => onRemark({ path, ...place, body }, line.text)}
              onClose={onClose}
            >
              {onDraft === undefined
                ? undefined
                : (body) => (
                    <Button
                      disabled={body.trim() === ""}
                      onClick={() => {
                        onDraft({ remark: { path, ...place, body }, text: line.text });
                        onClose();
                      }}
                    >
                      Add to review
                    </Button>
                  )}
            </WordsForm>
          </div>
        </div>
      )}
    </>
  );
}

const Slab = memo(function Slab({
  rows,
  first,
  drawing,
  forced,
  onMore,
}: {
  rows: Row[];
  /** Whether it is drawn before it is known to be seen. */
  first: boolean;
  drawing: Drawing;
  /** The row to show, counted in this slab. */
  forced?: number;
  onMore?: (gap: number, way: "top" | "bottom" | "all") => void;
}) {
  const { ref, near } = useNear(NEAR);
  const [writing, setWriting] = useState<string>();
  const box = useRef<HTMLDivElement | null>(null);
  const height = useRef(rows.length * LINE_HEIGHT);
  const drawn = near || first || forced !== undefined || writing !== undefined;
  useEffect(() => {
    if (drawn && box.current !== null && box.current.offsetHeight > 0) height.current = box.current.offsetHeight;
  });
  useEffect(() => {
    if (forced === undefined) return;
    const row = box.current?.querySelector(`[data-at="${forced}"]`);
    row?.scrollIntoView({ block: "center" });
  }, [forced]);
  const both = useCallback(
    (element: HTMLDivElement | null) => {
      box.current = element;
      return ref(element);
    },
    [ref],
  );
  const { onRemark } = drawing;
  const comment = (line: PatchLine): ReactNode => {
    const place = placeOf(line);
    if (onRemark === undefined || place === undefined) return <span className="w-5 shrink-0" />;
    return (
      <button
        type="button"
        aria-label={`Comment on ${place.side === "left" ? "removed line" : "line"} ${place.line}`}
        onClick={() => setWriting(keyOf(place))}
        // It must be seen where nothing hovers. The sign is not text, so that it is not copied with the lines.
        className="w-5 shrink-0 rounded text-accent opacity-0 before:content-['+'] group-hover:opacity-100 hover:bg-accent hover:text-on-accent focus-visible:opacity-100 [@media(hover:none)]:opacity-100 [@media(hover:none)]:before:content-['⊕']"
      />
    );
  };
  const words = (line: PatchLine) =>
    lineParts(line.text, drawing.colours.get(line), markOf(line, drawing.parts.get(line)));
  const number = (line: PatchLine | undefined, value: number | undefined) => {
    const place = line === undefined || value === undefined ? undefined : placeOf(line);
    // The line's address, on the number that is its own.
    if (drawing.anchor === undefined || place === undefined || place.line !== value)
      return <span className={NUMBER}>{value}</span>;
    return (
      <a href={`#${drawing.anchor}${keyOf(place)}`} tabIndex={-1} className={`${NUMBER} hover:text-ink`}>
        {value}
      </a>
    );
  };
  const below = (line: PatchLine) => {
    const place = placeOf(line);
    if (place === undefined) return null;
    const key = keyOf(place);
    if (writing !== key && !drawing.talk.has(key) && !drawing.drafts.has(key)) return null;
    return <Below line={line} drawing={drawing} writing={writing === key} onClose={() => setWriting(undefined)} />;
  };
  const isAt = (line: PatchLine | undefined): string => {
    if (line === undefined || drawing.at === undefined) return "";
    const place = placeOf(line);
    return place !== undefined && keyOf(place) === drawing.at ? "outline outline-accent -outline-offset-1" : "";
  };
  const half = (line: PatchLine | undefined, side: "left" | "right") => (
    <div className={`group flex w-1/2 min-w-0 ${line === undefined ? "bg-raised" : LOOKS[line.kind]} ${isAt(line)}`}>
      {number(line, side === "left" ? line?.old : line?.now)}
      {line !== undefined && (line.kind !== "context" || side === "right") ? (
        comment(line)
      ) : (
        <span className="w-5 shrink-0" />
      )}
      {line !== undefined && line.kind !== "context" && <span className="sr-only">{SAID[line.kind]} </span>}
      <span className="min-w-0 flex-1 pr-2 break-all whitespace-pre-wrap">{line !== undefined && words(line)}</span>
    </div>
  );
  const gap = (row: Extract<Row, { kind: "gap" }>) => {
    const more = (way: "top" | "bottom" | "all", said: string, sign: string) => (
      <button
        type="button"
        onClick={() => onMore?.(row.gap, way)}
        className="rounded px-1.5 text-accent hover:bg-accent-soft"
      >
        <span aria-hidden>{sign} </span>
        {said}
      </button>
    );
    const small = row.hidden !== undefined && row.hidden <= MORE;
    return (
      <div className="flex h-5 items-center gap-3 bg-raised px-3 text-dim">
        {onMore !== undefined && (
          <span className="flex shrink-0 gap-1 font-sans">
            {small ? (
              more("all", row.hidden === 1 ? "Show 1 line" : `Show ${row.hidden} lines`, "↕")
            ) : (
              <>
                {row.gap > 0 && more("top", `Show ${MORE} more below`, "↓")}
                {row.head !== "" && more("bottom", `Show ${MORE} more above`, "↑")}
              </>
            )}
          </span>
        )}
        <span className="truncate">{plainText(row.head)}</span>
      </div>
    );
  };
  return (
    <div ref={both} style={drawn ? undefined : { height: height.current }}>
      {drawn &&
        rows.map((row, at) => {
          if (row.kind === "gap") return <div key={at}>{gap(row)}</div>;
          if (row.kind === "note")
            return (
              <p key={at} className="px-16 leading-5 text-dim italic">
                {plainText(row.text)}
              </p>
            );
          if (row.kind === "pair") {
            const { left, right } = row;
            return (
              <div key={at} data-at={at}>
                <div className="flex leading-5">
                  {half(left, "left")}
                  {half(right, "right")}
                </div>
                {left?.kind === "removed" && below(left)}
                {right !== undefined && below(right)}
              </div>
            );
          }
          const { line } = row;
          const more = below(line);
          const drawnLine = (
            <div
              key={at}
              data-at={at}
              data-sign={SIGNS[line.kind]}
              className={`group flex leading-5 ${LOOKS[line.kind]} ${isAt(line)}`}
            >
              {number(line.now === undefined ? line : undefined, line.old)}
              {number(line, line.now)}
              {comment(line)}
              {line.kind !== "context" && <span className="sr-only">{SAID[line.kind]} </span>}
              <span
                className={classes(
                  "pr-4 whitespace-pre before:inline-block before:w-4 before:select-none",
                  line.kind === "added"
                    ? "before:content-['+']"
                    : line.kind === "removed"
                      ? "before:content-['-']"
                      : "before:content-['']",
                )}
              >
                {words(line)}
              </span>
            </div>
          );
          return more === null ? (
            drawnLine
          ) : (
            <div key={at}>
              {drawnLine}
              {more}
            </div>
          );
        })}
    </div>
  );
});

function by<T>(all: T[], key: (one: T) => string): Map<string, T[]> {
  const found = new Map<string, T[]>();
  for (const one of all) found.set(key(one), [...(found.get(key(one)) ?? []), one]);
  return found;
}

const NONE: never[] = [];

export function PatchLines({
  file,
  remarks = NONE,
  drafts = NONE,
  onRemark,
  onDraft,
  threads,
  label = `Changes of ${file.path}`,
  split = false,
  source,
  goTo,
  anchor,
}: LinesProps) {
  const [shown, setShown] = useState<Map<number, Shown>>(new Map());
  const wanted = shown.size > 0;
  const whole = useQuery({
    queryKey: ["committed-file", source?.repository, source?.commit, file.path],
    queryFn: () =>
      take(
        api.GET("/api/v1/repositories/{repository}/file", {
          params: {
            path: { repository: source?.repository ?? "" },
            query: { commit: source?.commit ?? "", path: file.path },
          },
        }),
      ),
    // A commit does not change.
    staleTime: Number.POSITIVE_INFINITY,
    enabled: wanted && source !== undefined,
    retry: 1,
  });
  const text = useMemo(() => {
    if (whole.data === undefined || whole.data.binary) return undefined;
    const lines = whole.data.text.split("\n");
    // The last line ends the file, or was cut.
    if (lines.at(-1) === "" || whole.data.truncated) lines.pop();
    return lines;
  }, [whole.data]);
  const expands = source !== undefined && !whole.isError && whole.data?.binary !== true;
  const rows = useMemo(() => rowsOf(file, { split, expands, text, shown }), [file, split, expands, text, shown]);
  const { groups, of } = useMemo(() => groupsOf(rows), [rows]);
  const tokens = useTokens(languageOfPath(file.path), groups);
  const colours = useMemo(() => {
    const found = new Map<PatchLine, LineTokens>();
    tokens?.forEach((lines, group) =>
      lines.forEach((line, at) => {
        const here = of[group]?.[at];
        if (here !== undefined && line.length > 0 && !found.has(here)) found.set(here, line);
      }),
    );
    return found;
  }, [tokens, of]);
  const parts = useMemo(() => new Map(file.hunks.flatMap((hunk) => [...partsOf(hunk)])), [file]);
  const drawing = useMemo<Drawing>(
    () => ({
      colours,
      parts,
      talk: by(
        threadsOf(remarks).filter(({ first }) => first.line != null),
        ({ first }) => keyOf({ line: first.line ?? 0, side: first.side === "left" ? "left" : "right" }),
      ),
      drafts: by(drafts, ({ remark }) => keyOf(remark)),
      path: file.path,
      anchor,
      at: goTo,
      threads,
      onRemark,
      onDraft,
    }),
    [colours, parts, remarks, drafts, file.path, anchor, goTo, threads, onRemark, onDraft],
  );
  const more = useCallback(
    (gap: number, way: "top" | "bottom" | "all") => setShown((old) => expanded(old, gap, way)),
    [],
  );
  const slabs = useMemo(
    () => Array.from({ length: Math.ceil(rows.length / SLAB) }, (_, at) => rows.slice(at * SLAB, (at + 1) * SLAB)),
    [rows],
  );
  const forced = goTo === undefined ? -1 : rowOfPlace(rows, goTo);
  const outdated = remarks.filter((one) => one.line == null);
  return (
    <div
      className="relative overflow-x-auto font-mono text-xs"
      tabIndex={0}
      role="region"
      aria-label={plainText(label)}
    >
      {whole.isFetching && <p className="sr-only">Loading more lines</p>}
      <div className={split ? undefined : "w-max min-w-full"}>
        {slabs.map((slab, at) => (
          <Slab
            key={at}
            rows={slab}
            first={false}
            drawing={drawing}
            forced={Math.floor(forced / SLAB) === at ? forced % SLAB : undefined}
            onMore={expands ? more : undefined}
          />
        ))}
      </div>
      {outdated.length > 0 && (
        <div>
          <p className="bg-raised px-3 py-1 font-sans text-dim">On lines that are no longer part of the diff</p>
          {threadsOf(outdated).map((thread) => (
            <ThreadView key={thread.first.id} thread={thread} actions={threads} />
          ))}
        </div>
      )}
    </div>
  );
}
