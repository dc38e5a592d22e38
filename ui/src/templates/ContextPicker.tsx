// The files that COPY copies from: a folder, single files, or one archive.
import { useRef, useState, type DragEvent } from "react";
import { FileArchive, FolderOpen, Upload, X } from "lucide-react";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { toastError } from "../ui/feedback";
import { bytes, plainText } from "../ui/format";
import { fromDropped, fromPicked, isArchive, withoutClutter, type ContextFile } from "./context";

const MOST_LISTED = 100;

interface Props {
  files: ContextFile[];
  onChange: (files: ContextFile[]) => void;
  /** Whether the Dockerfile copies something. */
  needed: boolean;
}

export function ContextPicker({ files, onChange, needed }: Props) {
  const folder = useRef<HTMLInputElement>(null);
  const single = useRef<HTMLInputElement>(null);
  const [skipped, setSkipped] = useState(new Map<string, number>());
  const [over, setOver] = useState(false);
  const add = (picked: ContextFile[]) => {
    const { kept, skipped: left } = withoutClutter(picked);
    setSkipped(left);
    // One of the same path is replaced.
    onChange([...new Map([...files, ...kept].map((file) => [file.path, file])).values()]);
  };
  const drop = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    fromDropped(event.dataTransfer.items).then(add, toastError);
  };
  const total = files.reduce((sum, { data }) => sum + data.size, 0);
  return (
    <div
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={drop}
      className={classes("space-y-3 rounded-md", over && "outline-2 outline-offset-4 outline-accent outline-dashed")}
    >
      <p className="text-dim">
        {needed && files.length === 0 ? (
          <span className="font-medium text-warn">The Dockerfile copies files. Choose them here.</span>
        ) : (
          "COPY takes files from here. Choose a folder, files, or one .tar or .tar.gz."
        )}
      </p>
      <div className="flex flex-wrap gap-2">
        <Button onClick={() => folder.current?.click()} icon={<FolderOpen aria-hidden className="size-4" />}>
          Choose a folder
        </Button>
        <Button onClick={() => single.current?.click()} icon={<Upload aria-hidden className="size-4" />}>
          Choose files
        </Button>
        {files.length > 0 && (
          <Button tone="ghost" onClick={() => onChange([])} icon={<X aria-hidden className="size-4" />}>
            Remove all
          </Button>
        )}
      </div>
      <input
        ref={folder}
        type="file"
        hidden
        aria-label="Folder of the build context"
        {...{ webkitdirectory: "" }}
        onChange={({ target }) => {
          add(fromPicked(target.files ?? []));
          target.value = "";
        }}
      />
      <input
        ref={single}
        type="file"
        hidden
        multiple
        aria-label="Files of the build context"
        onChange={({ target }) => {
          add(fromPicked(target.files ?? []));
          target.value = "";
        }}
      />
      {files.length > 0 && (
        <details className="rounded-md border border-line">
          <summary className="px-3 py-2 text-sm font-medium">
            {isArchive(files) ? (
              <span className="inline-flex items-center gap-1.5">
                <FileArchive aria-hidden className="size-4" />
                {plainText(files[0]?.path ?? "")}, {bytes(total)}
              </span>
            ) : (
              `${files.length} ${files.length === 1 ? "file" : "files"}, ${bytes(total)}`
            )}
          </summary>
          <ul className="max-h-48 overflow-y-auto px-3 pb-2 font-mono text-xs">
            {files.slice(0, MOST_LISTED).map(({ path, data }) => (
              <li key={path} className="flex items-center justify-between gap-3 py-0.5">
                <span className="min-w-0 truncate">{plainText(path)}</span>
                <span className="flex shrink-0 items-center gap-1 text-dim">
                  {bytes(data.size)}
                  <button
                    type="button"
                    aria-label={`Remove ${plainText(path)}`}
                    className="rounded p-0.5 hover:bg-raised hover:text-ink"
                    onClick={() => onChange(files.filter((file) => file.path !== path))}
                  >
                    <X aria-hidden className="size-3.5" />
                  </button>
                </span>
              </li>
            ))}
            {files.length > MOST_LISTED && <li className="py-0.5 text-dim">and {files.length - MOST_LISTED} more</li>}
          </ul>
        </details>
      )}
      {skipped.size > 0 && (
        <p role="status" className="text-xs text-dim">
          Left out: {[...skipped].map(([name, count]) => `${name} (${count})`).join(", ")}. Put them in an archive if
          the build needs them.
        </p>
      )}
    </div>
  );
}
