// A diff, file by file, with comments on its lines: a list of files, unified or side by side, files folded and marked as viewed.
import { useCallback, useMemo, useRef, useState, type FormEvent, type ReactNode } from "react";
import { ChevronDown, ChevronRight, Columns2, MessageSquarePlus, Rows3 } from "lucide-react";
import type { Schemas } from "../api/client";
import { useNameOf } from "../api/people";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { Empty } from "../ui/feedback";
import { CheckField, TextArea } from "../ui/fields";
import { plainText } from "../ui/format";
import { Ago } from "../ui/time";
import { parsePatch, type PatchFile, type PatchLine } from "./patch";
import { pairsOf, partsOf, type Part } from "./words";

type Diff = Schemas["Diff"];
type Remark = Schemas["InlineComment"];

/** Lines of a file that are drawn at once; a generated file can have any number. */
const MOST_LINES = 1000;
const LINE_HEIGHT = 20;
const SPLIT = "coffer.split-diff";

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

interface Props {
  diff: Diff;
  remarks: Remark[];
  /** Called with the line that it is about, too. */
  onRemark?: (remark: NewRemark, text: string) => Promise<unknown>;
  /** Sends comments that were collected. `actions` are the ways to send them. */
  batch?: { label: (count: number) => string; send: (drafts: DraftRemark[]) => Promise<unknown>; primary?: boolean }[];
}

function placeOf(line: PatchLine): { line: number; side: "left" | "right" } | undefined {
  if (line.now !== undefined) return { line: line.now, side: "right" };
  return line.old === undefined ? undefined : { line: line.old, side: "left" };
}

const LOOKS = { added: "bg-ok-soft", removed: "bg-bad-soft", context: "", note: "text-dim italic" };
const MARKED = { added: "bg-ok/25", removed: "bg-bad/25", context: "", note: "" };
const SIGNS = { added: "+", removed: "-", context: " ", note: " " };
const SAID = { added: "added", removed: "removed", context: "", note: "" };

function RemarkForm({
  onSend,
  onDraft,
  onClose,
}: {
  onSend: (body: string) => Promise<unknown>;
  onDraft?: (body: string) => void;
  onClose: () => void;
}) {
  const [body, setBody] = useState("");
  const [busy, setBusy] = useState(false);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    onSend(body).then(onClose, () => setBusy(false));
  };
  return (
    <form onSubmit={submit} className="max-w-3xl space-y-2 border-y border-line bg-surface p-3 font-sans">
      <TextArea
        label="Comment on this line"
        required
        autoFocus
        value={body}
        onChange={(event) => setBody(event.target.value)}
        className="font-sans"
      />
      <div className="flex justify-end gap-2">
        <Button onClick={onClose}>Cancel</Button>
        {onDraft !== undefined && (
          <Button
            disabled={body.trim() === ""}
            onClick={() => {
              onDraft(body);
              onClose();
            }}
          >
            Add to review
          </Button>
        )}
        <Button type="submit" tone="primary" busy={busy}>
          Comment
        </Button>
      </div>
    </form>
  );
}

interface LinesProps {
  file: PatchFile;
  remarks?: Remark[];
  drafts?: DraftRemark[];
  onRemark?: Props["onRemark"];
  onDraft?: (draft: DraftRemark) => void;
  label?: string;
  split?: boolean;
}

function Words({ line, parts }: { line: PatchLine; parts: Part[] | undefined }) {
  if (parts === undefined) return plainText(line.text).slice(0, 2000);
  return parts.map((part, at) => (
    <span key={at} className={part.changed ? classes("rounded-xs", MARKED[line.kind]) : undefined}>
      {plainText(part.text).slice(0, 2000)}
    </span>
  ));
}

/** The changed lines of one file. */
export function PatchLines({
  file,
  remarks = [],
  drafts = [],
  onRemark,
  onDraft,
  label = `Changes of ${file.path}`,
  split = false,
}: LinesProps) {
  const nameOf = useNameOf();
  const [writing, setWriting] = useState<string>();
  const [all, setAll] = useState(false);
  let left = all ? Number.POSITIVE_INFINITY : MOST_LINES;

  const button = (line: PatchLine, key: string): ReactNode => {
    const place = placeOf(line);
    if (onRemark === undefined || place === undefined) return null;
    return (
      <button
        type="button"
        aria-label={`Comment on ${place.side === "left" ? "removed line" : "line"} ${place.line}`}
        onClick={() => setWriting(key)}
        // It must be seen where nothing hovers.
        className="opacity-0 group-hover:opacity-100 focus-visible:opacity-100 [@media(hover:none)]:opacity-100"
      >
        <MessageSquarePlus aria-hidden className="size-4 text-accent" />
      </button>
    );
  };
  const below = (line: PatchLine, key: string): ReactNode => {
    const place = placeOf(line);
    if (place === undefined) return null;
    const here = (one: { line?: number | null; side?: string | null }) =>
      one.line === place.line && (one.side ?? "right") === place.side;
    return (
      <>
        {remarks.filter(here).map((one) => (
          <div key={one.id} className="border-y border-line bg-surface px-4 py-2 font-sans text-sm">
            <p className="flex gap-2 text-xs text-dim">
              <span className="font-medium text-ink">{plainText(nameOf(one.author))}</span>
              {one.created_at !== "" && <Ago at={one.created_at} />}
            </p>
            <p className="whitespace-pre-wrap">{one.body.split("\n").map(plainText).join("\n")}</p>
          </div>
        ))}
        {drafts
          .filter(({ remark }) => here(remark))
          .map(({ remark }, at) => (
            <div key={at} className="border-y border-line bg-warn-soft px-4 py-2 font-sans text-sm">
              <p className="text-xs font-medium text-warn">Not sent yet</p>
              <p className="whitespace-pre-wrap">{remark.body}</p>
            </div>
          ))}
        {writing === key && onRemark !== undefined && (
          <RemarkForm
            onClose={() => setWriting(undefined)}
            onDraft={
              onDraft === undefined
                ? undefined
                : (body) => onDraft({ remark: { path: file.path, ...place, body }, text: line.text })
            }
            onSend={(body) => onRemark({ path: file.path, ...place, body }, line.text)}
          />
        )}
      </>
    );
  };

  return (
    <div
      className="relative overflow-x-auto font-mono text-xs"
      tabIndex={0}
      role="region"
      aria-label={plainText(label)}
    >
      {file.hunks.map((hunk) => {
        const shown = { ...hunk, lines: hunk.lines.slice(0, Math.max(0, left)) };
        left -= hunk.lines.length;
        if (shown.lines.length === 0) return null;
        const parts = partsOf(shown);
        const half = (line: PatchLine | undefined, side: "left" | "right", key: string) => (
          <div className={classes("group flex w-1/2 min-w-0", line === undefined ? "bg-raised" : LOOKS[line.kind])}>
            <span className="w-11 shrink-0 pr-2 text-right text-dim select-none">
              {side === "left" ? line?.old : line?.now}
            </span>
            <span className="w-5 shrink-0">
              {line !== undefined && (line.kind !== "context" || side === "right") && button(line, key)}
            </span>
            <span className="min-w-0 flex-1 pr-2 break-all whitespace-pre-wrap">
              {line !== undefined && (
                <>
                  <span className="sr-only">{SAID[line.kind]} </span>
                  <Words line={line} parts={parts.get(line)} />
                </>
              )}
            </span>
          </div>
        );
        return (
          <div key={hunk.head}>
            <div className="bg-raised px-3 py-1 text-dim">{plainText(hunk.head)}</div>
            {split
              ? pairsOf(shown).map(({ left: before, right: after, note }, at) => {
                  const key = `${hunk.head}${at}`;
                  if (note !== undefined)
                    return (
                      <p key={key} className="px-16 text-dim italic">
                        {plainText(note.text)}
                      </p>
                    );
                  return (
                    <div key={key}>
                      <div className="flex leading-5">
                        {half(before, "left", `${key}l`)}
                        {half(after, "right", `${key}r`)}
                      </div>
                      {before !== undefined && before.kind === "removed" && below(before, `${key}l`)}
                      {after !== undefined && below(after, `${key}r`)}
                    </div>
                  );
                })
              : shown.lines.map((line, at) => {
                  const key = `${hunk.head}${at}`;
                  return (
                    <div key={key}>
                      <div className={classes("group flex min-w-max leading-5", LOOKS[line.kind])}>
                        <span className="w-11 shrink-0 pr-2 text-right text-dim select-none">{line.old}</span>
                        <span className="w-11 shrink-0 pr-2 text-right text-dim select-none">{line.now}</span>
                        <span className="w-5 shrink-0">{button(line, key)}</span>
                        <span aria-hidden className="w-4 shrink-0 select-none">
                          {SIGNS[line.kind]}
                        </span>
                        {line.kind !== "context" && <span className="sr-only">{SAID[line.kind]}</span>}
                        <span className="pr-4 whitespace-pre">
                          <Words line={line} parts={parts.get(line)} />
                        </span>
                      </div>
                      {below(line, key)}
                    </div>
                  );
                })}
          </div>
        );
      })}
      {left < 0 && (
        <Button className="m-3 font-sans" onClick={() => setAll(true)}>
          Show {-left} more lines
        </Button>
      )}
    </div>
  );
}

/** Whether an element is near what is seen; once it was, it stays drawn until it is far away again. */
function useNear() {
  const [near, setNear] = useState(false);
  const ref = useCallback((box: HTMLElement | null) => {
    if (box === null) return;
    const watch = new IntersectionObserver(([seen]) => setNear(seen?.isIntersecting === true), {
      rootMargin: "900px 0px",
    });
    watch.observe(box);
    return () => watch.disconnect();
  }, []);
  return { ref, near };
}

const idOf = (path: string) => `file-${encodeURIComponent(path)}`;

function FileCard({
  file,
  patch,
  viewed,
  onViewed,
  ...lines
}: {
  file: Diff["files"][number];
  patch: PatchFile | undefined;
  viewed: boolean;
  onViewed: (viewed: boolean) => void;
} & Omit<LinesProps, "file">) {
  const [folded, setFolded] = useState<boolean>();
  const { ref, near } = useNear();
  const drawn = useRef(0);
  const body = useRef<HTMLDivElement>(null);
  const open = !(folded ?? viewed);
  const count = patch?.hunks.reduce((sum, hunk) => sum + hunk.lines.length + 1, 0) ?? 1;
  if (body.current !== null && near) drawn.current = body.current.offsetHeight;
  // A form that is being written in stays, wherever it is scrolled to.
  const keeps = near || body.current?.contains(document.activeElement) === true;
  return (
    <section ref={ref} id={idOf(file.path)} className="min-w-0 scroll-mt-2 rounded-lg border border-line bg-surface">
      <div className="sticky top-0 z-10 flex flex-wrap items-center gap-2 rounded-t-lg border-b border-line bg-surface px-2 py-1.5">
        <Button
          tone="ghost"
          data-row
          aria-expanded={open}
          aria-label={`${open ? "Fold" : "Unfold"} ${plainText(file.path)}`}
          onClick={() => setFolded(open)}
          icon={open ? <ChevronDown aria-hidden className="size-4" /> : <ChevronRight aria-hidden className="size-4" />}
        />
        <h2 className="min-w-0 flex-1 font-mono text-sm font-medium break-all">
          {file.previous_path && `${plainText(file.previous_path)} → `}
          {plainText(file.path)}
        </h2>
        <span className="flex items-center gap-2 text-xs">
          {file.change !== "modified" && <Badge>{file.change}</Badge>}
          <span className="text-ok">+{file.additions}</span>
          <span className="text-bad">−{file.deletions}</span>
        </span>
        <CheckField
          label="Viewed"
          checked={viewed}
          onChange={(event) => {
            onViewed(event.target.checked);
            setFolded(undefined);
          }}
        />
      </div>
      {open && (
        <div ref={body}>
          {patch === undefined || patch.hunks.length === 0 ? (
            <p className="px-4 py-3 text-dim">{file.binary ? "A binary file." : "No lines to show."}</p>
          ) : keeps ? (
            <PatchLines file={patch} {...lines} />
          ) : (
            <div aria-hidden style={{ height: drawn.current || Math.min(count, MOST_LINES) * LINE_HEIGHT }} />
          )}
        </div>
      )}
    </section>
  );
}

function Batch({
  drafts,
  ways,
  onDone,
}: {
  drafts: DraftRemark[];
  ways: NonNullable<Props["batch"]>;
  onDone: () => void;
}) {
  const [busy, setBusy] = useState(false);
  if (drafts.length === 0) return null;
  return (
    <div
      role="region"
      aria-label="Review"
      className="sticky bottom-2 z-20 flex flex-wrap items-center justify-end gap-2 rounded-lg border border-line bg-surface p-3 shadow-lg"
    >
      <span className="mr-auto font-medium">
        {drafts.length === 1 ? "1 comment" : `${drafts.length} comments`} not sent yet
      </span>
      <Button tone="ghost" onClick={onDone}>
        Discard
      </Button>
      {ways.map((way) => (
        <Button
          key={way.label(2)}
          tone={way.primary ? "primary" : "plain"}
          busy={busy}
          onClick={() => {
            setBusy(true);
            way
              .send(drafts)
              .then(onDone, () => undefined)
              .finally(() => setBusy(false));
          }}
        >
          {way.label(drafts.length)}
        </Button>
      ))}
    </div>
  );
}

export function DiffView({ diff, remarks, onRemark, batch }: Props) {
  const patches = useMemo(() => new Map(parsePatch(diff.patch).map((file) => [file.path, file])), [diff.patch]);
  const [split, setSplit] = useState(() => localStorage.getItem(SPLIT) === "yes");
  const [viewed, setViewed] = useState<Set<string>>(new Set());
  const [drafts, setDrafts] = useState<DraftRemark[]>([]);
  const box = useRef<HTMLDivElement>(null);
  if (diff.files.length === 0) return <Empty title="No differences" />;
  const go = (step: 1 | -1) => {
    const heads = [...(box.current?.querySelectorAll("section[id^=file-]") ?? [])];
    const at = heads.findLastIndex((head) => head.getBoundingClientRect().top < 160);
    heads[Math.max(0, at + step)]?.scrollIntoView({ block: "start" });
  };
  return (
    <div ref={box} className="space-y-3">
      <div className="flex flex-wrap items-center gap-2">
        <p className="mr-auto text-dim">
          {diff.files.length} {diff.files.length === 1 ? "file" : "files"},{" "}
          <span className="text-ok">+{diff.additions}</span> <span className="text-bad">−{diff.deletions}</span>
          {viewed.size > 0 && `, ${viewed.size} viewed`}
          {diff.truncated && "; the diff is too long to show all of it"}
        </p>
        <button type="button" data-key="n" className="sr-only" onClick={() => go(1)}>
          Next file
        </button>
        <button type="button" data-key="p" className="sr-only" onClick={() => go(-1)}>
          Previous file
        </button>
        <Button
          className="max-sm:hidden"
          aria-pressed={split}
          onClick={() => {
            localStorage.setItem(SPLIT, split ? "no" : "yes");
            setSplit(!split);
          }}
          icon={split ? <Rows3 aria-hidden className="size-4" /> : <Columns2 aria-hidden className="size-4" />}
        >
          {split ? "Unified" : "Split"}
        </Button>
      </div>
      <div className={diff.files.length > 1 ? "gap-4 lg:grid lg:grid-cols-[220px_minmax(0,1fr)]" : undefined}>
        {diff.files.length > 1 && (
          <nav
            aria-label="Changed files"
            className="top-2 mb-3 max-h-60 self-start overflow-y-auto rounded-lg border border-line bg-surface p-1 lg:sticky lg:max-h-[80vh]"
          >
            {diff.files.map((file) => (
              <button
                key={file.path}
                type="button"
                title={plainText(file.path)}
                onClick={() => document.getElementById(idOf(file.path))?.scrollIntoView({ block: "start" })}
                className={classes(
                  "flex w-full items-center gap-2 rounded px-2 py-1 text-left text-xs hover:bg-raised",
                  viewed.has(file.path) && "text-dim line-through",
                )}
              >
                <span className="min-w-0 flex-1 truncate font-mono [direction:rtl]">
                  <bdi>{plainText(file.path)}</bdi>
                </span>
                <span className="shrink-0 text-ok">+{file.additions}</span>
                <span className="shrink-0 text-bad">−{file.deletions}</span>
              </button>
            ))}
          </nav>
        )}
        <div className="min-w-0 space-y-3">
          {diff.files.map((file) => (
            <FileCard
              key={file.path}
              file={file}
              patch={patches.get(file.path)}
              viewed={viewed.has(file.path)}
              onViewed={(on) =>
                setViewed((old) => new Set(on ? [...old, file.path] : [...old].filter((path) => path !== file.path)))
              }
              split={split}
              remarks={remarks.filter((one) => one.path === file.path)}
              drafts={drafts.filter(({ remark }) => remark.path === file.path)}
              onRemark={onRemark}
              onDraft={batch === undefined ? undefined : (draft) => setDrafts((old) => [...old, draft])}
            />
          ))}
          {batch !== undefined && <Batch drafts={drafts} ways={batch} onDone={() => setDrafts([])} />}
        </div>
      </div>
    </div>
  );
}
