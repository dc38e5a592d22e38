// A diff, file by file, with comments on its lines.
import { useMemo, useState, type FormEvent } from "react";
import { MessageSquarePlus } from "lucide-react";
import type { Schemas } from "../api/client";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { Empty } from "../ui/feedback";
import { TextArea } from "../ui/fields";
import { plainText } from "../ui/format";
import { Card } from "../ui/layout";
import { parsePatch, type PatchFile, type PatchLine } from "./patch";

type Diff = Schemas["Diff"];
type Remark = Schemas["InlineComment"];

/** Lines of a file that are drawn at once; a file that was generated can have any number. */
const MOST_LINES = 2000;

export interface NewRemark {
  path: string;
  line: number;
  side: "left" | "right";
  body: string;
}

interface Props {
  diff: Diff;
  remarks: Remark[];
  /** Called with the line that it is about, too. */
  onRemark?: (remark: NewRemark, text: string) => Promise<unknown>;
}

function placeOf(line: PatchLine): { line: number; side: "left" | "right" } | undefined {
  if (line.now !== undefined) return { line: line.now, side: "right" };
  return line.old === undefined ? undefined : { line: line.old, side: "left" };
}

const LOOKS = { added: "bg-ok-soft", removed: "bg-bad-soft", context: "", note: "text-dim italic" };
const SIGNS = { added: "+", removed: "-", context: " ", note: " " };
const SAID = { added: "added", removed: "removed", context: "", note: "" };

function RemarkForm({ onSend, onClose }: { onSend: (body: string) => Promise<unknown>; onClose: () => void }) {
  const [body, setBody] = useState("");
  const [busy, setBusy] = useState(false);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    onSend(body).then(onClose, () => setBusy(false));
  };
  return (
    <form onSubmit={submit} className="space-y-2 border-y border-line bg-surface p-3 font-sans">
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
  onRemark?: Props["onRemark"];
  label?: string;
}

/** The changed lines of one file. */
export function PatchLines({ file, remarks = [], onRemark, label = `Changes of ${file.path}` }: LinesProps) {
  const [writing, setWriting] = useState<string>();
  const [all, setAll] = useState(false);
  let left = all ? Number.POSITIVE_INFINITY : MOST_LINES;
  return (
    <div className="overflow-x-auto font-mono text-xs" tabIndex={0} role="region" aria-label={plainText(label)}>
      {file.hunks.map((hunk) => {
        const lines = hunk.lines.slice(0, Math.max(0, left));
        left -= hunk.lines.length;
        if (lines.length === 0) return null;
        return (
          <div key={hunk.head}>
            <div className="bg-raised px-3 py-1 text-dim">{plainText(hunk.head)}</div>
            {lines.map((line, at) => {
              const place = placeOf(line);
              const key = `${hunk.head}${at}`;
              const said = remarks.filter(
                (one) => place !== undefined && one.line === place.line && (one.side ?? "right") === place.side,
              );
              return (
                <div key={key}>
                  <div className={classes("group flex min-w-max leading-5", LOOKS[line.kind])}>
                    <span className="w-11 shrink-0 pr-2 text-right text-dim select-none">{line.old}</span>
                    <span className="w-11 shrink-0 pr-2 text-right text-dim select-none">{line.now}</span>
                    <span className="w-5 shrink-0">
                      {onRemark !== undefined && place !== undefined && (
                        <button
                          type="button"
                          aria-label={`Comment on ${place.side === "left" ? "removed line" : "line"} ${place.line}`}
                          onClick={() => setWriting(key)}
                          // Where nothing hovers it must be seen without.
                          className="opacity-0 group-hover:opacity-100 focus-visible:opacity-100 [@media(hover:none)]:opacity-100"
                        >
                          <MessageSquarePlus aria-hidden className="size-4 text-accent" />
                        </button>
                      )}
                    </span>
                    <span aria-hidden className="w-4 shrink-0 select-none">
                      {SIGNS[line.kind]}
                    </span>
                    <span className="sr-only">{SAID[line.kind]}</span>
                    <span className="pr-4 whitespace-pre">{plainText(line.text).slice(0, 2000)}</span>
                  </div>
                  {said.map((one) => (
                    <div key={one.id} className="border-y border-line bg-surface px-4 py-2 font-sans text-sm">
                      <span className="font-medium">{plainText(one.author)}</span>
                      <p className="whitespace-pre-wrap">{one.body.split("\n").map(plainText).join("\n")}</p>
                    </div>
                  ))}
                  {writing === key && place !== undefined && onRemark !== undefined && (
                    <RemarkForm
                      onClose={() => setWriting(undefined)}
                      onSend={(body) => onRemark({ path: file.path, ...place, body }, line.text)}
                    />
                  )}
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

export function DiffView({ diff, remarks, onRemark }: Props) {
  const patches = useMemo(() => new Map(parsePatch(diff.patch).map((file) => [file.path, file])), [diff.patch]);
  if (diff.files.length === 0) return <Empty title="Nothing differs" />;
  return (
    <div className="space-y-3">
      <p className="text-dim">
        {diff.files.length} {diff.files.length === 1 ? "file" : "files"},{" "}
        <span className="text-ok">+{diff.additions}</span> <span className="text-bad">−{diff.deletions}</span>
        {diff.truncated && "; the diff is too long to be shown whole"}
      </p>
      {diff.files.map((file) => {
        const patch = patches.get(file.path);
        return (
          <Card
            key={file.path}
            title={
              <span className="font-mono text-sm break-all">
                {file.previous_path && `${plainText(file.previous_path)} → `}
                {plainText(file.path)}
              </span>
            }
            actions={
              <span className="flex items-center gap-2 text-xs">
                {file.change !== "modified" && <Badge>{file.change}</Badge>}
                <span className="text-ok">+{file.additions}</span>
                <span className="text-bad">−{file.deletions}</span>
              </span>
            }
          >
            {patch === undefined || patch.hunks.length === 0 ? (
              <p className="px-4 py-3 text-dim">{file.binary ? "It is not text." : "No lines to show."}</p>
            ) : (
              <PatchLines file={patch} remarks={remarks.filter((one) => one.path === file.path)} onRemark={onRemark} />
            )}
          </Card>
        );
      })}
    </div>
  );
}
