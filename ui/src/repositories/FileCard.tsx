// One file of a diff: its name, which stays in sight, and its lines.
import { memo, useEffect, useRef, useState } from "react";
import { ChevronDown, ChevronRight } from "lucide-react";
import type { Schemas } from "../api/client";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { CheckField } from "../ui/fields";
import { plainText } from "../ui/format";
import { useNear } from "./near";
import { LINE_HEIGHT, PatchLines, type LinesProps } from "./PatchLines";
import type { PatchFile } from "./patch";

/** About a screen. */
const NEAR = 900;

export const idOf = (path: string) => `file-${encodeURIComponent(path)}`;

export const FileCard = memo(function FileCard({
  file,
  patch,
  viewed,
  onViewed,
  goTo,
  ...lines
}: {
  file: Schemas["DiffFile"];
  patch: PatchFile | undefined;
  viewed: boolean;
  onViewed: (path: string, viewed: boolean) => void;
} & Omit<LinesProps, "file">) {
  const [folded, setFolded] = useState<boolean>();
  const { ref, near } = useNear(NEAR);
  const body = useRef<HTMLDivElement>(null);
  const height = useRef(0);
  const open = goTo !== undefined || !(folded ?? viewed);
  const count = patch?.hunks.reduce((sum, hunk) => sum + hunk.lines.length + 1, 0) ?? 1;
  // Words that are being written stay, wherever they are scrolled to.
  const keeps = near || goTo !== undefined || body.current?.contains(document.activeElement) === true;
  useEffect(() => {
    if (keeps && body.current !== null) height.current = body.current.offsetHeight;
  });
  const name = plainText(file.path);
  const fold = (
    <Button
      tone="ghost"
      data-row
      aria-expanded={open}
      aria-label={`${open ? "Fold" : "Unfold"} ${name}`}
      onClick={() => setFolded(open)}
      icon={
        !keeps ? (
          ""
        ) : open ? (
          <ChevronDown aria-hidden className="size-4" />
        ) : (
          <ChevronRight aria-hidden className="size-4" />
        )
      }
    />
  );
  return (
    <section ref={ref} id={idOf(file.path)} className="min-w-0 scroll-mt-2 rounded-lg border border-line bg-surface">
      <div className="sticky top-0 z-10 flex min-h-11 flex-wrap items-center gap-2 rounded-t-lg border-b border-line bg-surface px-2 py-1.5">
        {fold}
        <h2 className="min-w-0 flex-1 font-mono text-sm font-medium break-all">
          {file.previous_path && `${plainText(file.previous_path)} → `}
          {name}
        </h2>
        {keeps && (
          <>
            <span className="flex items-center gap-2 text-xs">
              {file.change !== "modified" && <Badge>{file.change}</Badge>}
              <span className="text-ok">+{file.additions}</span>
              <span className="text-bad">−{file.deletions}</span>
            </span>
            <CheckField
              label="Viewed"
              checked={viewed}
              onChange={(event) => {
                onViewed(file.path, event.target.checked);
                setFolded(undefined);
              }}
            />
          </>
        )}
      </div>
      {open && (
        <div ref={body} style={keeps ? undefined : { height: height.current || count * LINE_HEIGHT }}>
          {!keeps ? null : patch === undefined || patch.hunks.length === 0 ? (
            <p className="px-4 py-3 text-dim">{file.binary ? "A binary file." : "No lines to show."}</p>
          ) : (
            <PatchLines file={patch} goTo={goTo} {...lines} />
          )}
        </div>
      )}
    </section>
  );
});
