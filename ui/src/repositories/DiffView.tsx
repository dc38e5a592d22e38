// A diff, file by file, with comments on its lines: a list of files, unified or side by side, files folded and marked as viewed.
import { memo, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { Columns2, Rows3 } from "lucide-react";
import type { Schemas } from "../api/client";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { Empty } from "../ui/feedback";
import { plainText } from "../ui/format";
import { FileCard, idOf } from "./FileCard";
import { parsePatch } from "./patch";
import type { DraftRemark, LinesProps, Source } from "./PatchLines";
import { isResolved, threadsOf, type Remark, type ThreadActions } from "./threads";

type Diff = Schemas["Diff"];

const SPLIT = "coffer.split-diff";

interface Props {
  diff: Diff;
  remarks?: Remark[];
  onRemark?: LinesProps["onRemark"];
  threads?: ThreadActions;
  /** Where more of the files can be read. */
  source?: Source;
  /** Sends comments that were collected. `actions` are the ways to send them. */
  batch?: { label: (count: number) => string; send: (drafts: DraftRemark[]) => Promise<unknown>; primary?: boolean }[];
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

/** `#file-src%2Fa.rsR12`: a file, and a line of it. */
function useAddress(): { file: string; line?: string } | undefined {
  const read = () => {
    const found = /^#(file-.+?)([LR]\d+)?$/.exec(location.hash);
    return found?.[1] === undefined ? undefined : { file: found[1], line: found[2] };
  };
  const [address, setAddress] = useState(read);
  useEffect(() => {
    const changed = () => setAddress(read());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return address;
}

const FileList = memo(function FileList({ files, viewed }: { files: Diff["files"]; viewed: Set<string> }) {
  return (
    <nav
      aria-label="Changed files"
      className="top-2 mb-3 max-h-60 self-start overflow-y-auto rounded-lg border border-line bg-surface p-1 lg:sticky lg:max-h-[80vh]"
    >
      {files.map((file) => (
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
  );
});

const NONE: never[] = [];

/** By path, so that a file is drawn again only if its own comments changed. */
function useOfFile<T>(all: T[], path: (one: T) => string): (path: string) => T[] {
  const found = useMemo(() => {
    const found = new Map<string, T[]>();
    for (const one of all) found.set(path(one), [...(found.get(path(one)) ?? []), one]);
    return found;
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [all]);
  return (path) => found.get(path) ?? NONE;
}

export function DiffView({ diff, remarks = NONE, onRemark, threads, source, batch }: Props) {
  const patches = useMemo(() => new Map(parsePatch(diff.patch).map((file) => [file.path, file])), [diff.patch]);
  const [split, setSplit] = useState(() => localStorage.getItem(SPLIT) === "yes");
  const [viewed, setViewed] = useState<Set<string>>(new Set());
  const [drafts, setDrafts] = useState<DraftRemark[]>([]);
  const box = useRef<HTMLDivElement>(null);
  const address = useAddress();
  const remarksOf = useOfFile(remarks, (one) => one.path);
  const draftsOf = useOfFile(drafts, ({ remark }) => remark.path);
  const onViewed = useCallback(
    (path: string, on: boolean) =>
      setViewed((old) => new Set(on ? [...old, path] : [...old].filter((one) => one !== path))),
    [],
  );
  const onDraft = useCallback((draft: DraftRemark) => setDrafts((old) => [...old, draft]), []);
  const shown = diff.files.length > 0;
  useEffect(() => {
    if (shown && address !== undefined && address.line === undefined)
      document.getElementById(address.file)?.scrollIntoView({ block: "start" });
  }, [address, shown]);
  if (!shown) return <Empty title="No differences" />;
  const go = (step: 1 | -1) => {
    const heads = [...(box.current?.querySelectorAll("section[id^=file-]") ?? [])];
    const at = heads.findLastIndex((head) => head.getBoundingClientRect().top < 160);
    heads[Math.max(0, at + step)]?.scrollIntoView({ block: "start" });
  };
  const unresolved = threadsOf(remarks).filter((thread) => !isResolved(thread)).length;
  return (
    <div ref={box} className="space-y-3">
      <div className="flex flex-wrap items-center gap-2">
        <p className="mr-auto text-dim">
          {diff.files.length} {diff.files.length === 1 ? "file" : "files"},{" "}
          <span className="text-ok">+{diff.additions}</span> <span className="text-bad">−{diff.deletions}</span>
          {viewed.size > 0 && `, ${viewed.size} viewed`}
          {unresolved > 0 && `, ${unresolved} open ${unresolved === 1 ? "thread" : "threads"}`}
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
        {diff.files.length > 1 && <FileList files={diff.files} viewed={viewed} />}
        <div className="min-w-0 space-y-3">
          {diff.files.map((file) => (
            <FileCard
              key={file.path}
              file={file}
              patch={patches.get(file.path)}
              viewed={viewed.has(file.path)}
              onViewed={onViewed}
              split={split}
              remarks={remarksOf(file.path)}
              drafts={draftsOf(file.path)}
              onRemark={onRemark}
              onDraft={batch === undefined ? undefined : onDraft}
              threads={threads}
              // What was deleted is in no later commit, and of what was added all is shown.
              source={file.change === "deleted" || file.change === "added" ? undefined : source}
              anchor={idOf(file.path)}
              goTo={address?.file === idOf(file.path) ? address.line : undefined}
            />
          ))}
          {batch !== undefined && <Batch drafts={drafts} ways={batch} onDone={() => setDrafts([])} />}
        </div>
      </div>
    </div>
  );
}
