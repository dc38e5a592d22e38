// The files of a sandbox: browse, look, edit, upload by drop, download. Names and contents are hostile: they are only
// ever shown as text, and pictures only as pictures.
import { lazy, Suspense, useRef, useState, type DragEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { Download, File as FileIcon, Folder, FolderPlus, Link2, Trash2, Upload } from "lucide-react";
import { toast } from "sonner";
import { api, raw, take, type Schemas } from "../api/client";
import { contentPath, download, upload } from "../api/files";
import { useSandbox } from "../api/sandboxes";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { CopyAs, curl } from "../ui/CopyAs";
import { Confirm, Dialog } from "../ui/Dialog";
import { Empty, ErrorBox, Loaded, Loading, toastError } from "../ui/feedback";
import { TextField } from "../ui/fields";
import { bytes, plainText, shellWord } from "../ui/format";
import { Cell, Table } from "../ui/layout";
import { useGrowing } from "../ui/growing";
import { Ago } from "../ui/time";
import { Awake } from "./Asleep";

type Entry = Schemas["Entry"];

const FileView = lazy(() => import("./FileView").then((module) => ({ default: module.FileView })));
const HOME = "/home/user";

function join(directory: string, name: string): string {
  return `${directory === "/" ? "" : directory}/${name}`;
}

function Crumbs({ path, go }: { path: string; go: (path: string) => void }) {
  const parts = path.split("/").filter(Boolean);
  const link = "rounded px-1 py-0.5 font-mono text-accent hover:underline";
  return (
    <nav aria-label="Directory" className="flex min-w-0 flex-1 flex-wrap items-center">
      <button type="button" className={link} onClick={() => go("/")}>
        /
      </button>
      {parts.map((part, at) => (
        <span key={`${at}${part}`} className="flex items-center">
          {at > 0 && (
            <span aria-hidden className="text-dim">
              /
            </span>
          )}
          <button
            type="button"
            aria-current={at === parts.length - 1 ? "page" : undefined}
            className={classes(link, at === parts.length - 1 && "font-semibold text-ink")}
            onClick={() => go(`/${parts.slice(0, at + 1).join("/")}`)}
          >
            {plainText(part)}
          </button>
        </span>
      ))}
    </nav>
  );
}

/** f2 before f10. */
const byName = new Intl.Collator(undefined, { numeric: true });
/** Rows that are drawn at first, and more of when the end is scrolled to. */
const AT_ONCE = 150;

function NewDirectory({ id, path, onClose }: { id: string; path: string; onClose: () => void }) {
  const queries = useQueryClient();
  const [name, setName] = useState("");
  const make = useMutation({
    mutationFn: () =>
      take(
        api.POST("/api/v1/sandboxes/{id}/files", {
          params: { path: { id } },
          body: { action: "mkdir", path: join(path, name) },
        }),
      ),
    onSuccess: () => {
      void queries.invalidateQueries({ queryKey: ["files", id] });
      onClose();
    },
  });
  return (
    <Dialog open onClose={onClose} title="New directory">
      <form
        className="space-y-4"
        onSubmit={(event) => {
          event.preventDefault();
          make.mutate();
        }}
      >
        <TextField label="Name" required autoFocus value={name} onChange={(event) => setName(event.target.value)} />
        {make.error !== null && <ErrorBox error={make.error} />}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={make.isPending}>
            Create
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

function Browser({ id }: { id: string }) {
  const { path = HOME, open } = useSearch({ from: "/shell/sandboxes/$id/files" });
  const navigate = useNavigate({ from: "/sandboxes/$id/files" });
  const queries = useQueryClient();
  const picker = useRef<HTMLInputElement>(null);
  const [over, setOver] = useState(false);
  const [making, setMaking] = useState(false);
  const [removing, setRemoving] = useState<Entry>();
  const [progress, setProgress] = useState<{ name: string; share: number }>();
  const { most, end } = useGrowing(AT_ONCE);
  const allowed = may("write");
  const go = (next: string) => void navigate({ search: { path: next } });

  const query = useQuery({
    queryKey: ["files", id, path],
    queryFn: async () => {
      const entries: Entry[] = [];
      let cursor: string | undefined;
      do {
        const page = await take(
          api.GET("/api/v1/sandboxes/{id}/files", { params: { path: { id }, query: { path, limit: 200, cursor } } }),
        );
        entries.push(...page.items);
        cursor = page.next ?? undefined;
      } while (cursor !== undefined && entries.length < 5000);
      const rank = (entry: Entry) => (entry.kind === "directory" ? 0 : 1);
      entries.sort((a, b) => rank(a) - rank(b) || byName.compare(a.name, b.name));
      return { entries, more: cursor !== undefined };
    },
    staleTime: 5000,
  });

  const send = async (list: FileList | File[]) => {
    for (const file of list) {
      try {
        setProgress({ name: file.name, share: 0 });
        await upload(id, join(path, file.name), file, (share) => setProgress({ name: file.name, share }));
        toast.success(`Uploaded ${plainText(file.name)}`);
      } catch (error) {
        toastError(error);
      }
    }
    setProgress(undefined);
    void queries.invalidateQueries({ queryKey: ["files", id] });
  };
  const drop = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    if (allowed) void send(event.dataTransfer.files);
  };

  if (open !== undefined) {
    return (
      <Suspense fallback={<Loading what="Opening" />}>
        <FileView id={id} path={open} onClose={() => void navigate({ search: { path } })} />
      </Suspense>
    );
  }
  return (
    <div
      className="relative m-3 rounded-lg border border-line bg-surface sm:m-5"
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={(event) => event.currentTarget === event.target && setOver(false)}
      onDrop={drop}
    >
      {over && (
        <div className="pointer-events-none absolute inset-0 z-10 flex items-center justify-center rounded-lg border-2 border-dashed border-accent bg-accent-soft/80 text-lg font-medium text-accent">
          Drop to upload into {plainText(path)}
        </div>
      )}
      <div className="flex flex-wrap items-center gap-2 border-b border-line px-3 py-2">
        <Crumbs path={path} go={go} />
        <input
          ref={picker}
          type="file"
          multiple
          hidden
          onChange={(event) => event.target.files && void send(event.target.files)}
        />
        <Button
          disabled={!allowed}
          onClick={() => picker.current?.click()}
          icon={<Upload aria-hidden className="size-4" />}
        >
          Upload
        </Button>
        <Button
          disabled={!allowed}
          onClick={() => setMaking(true)}
          icon={<FolderPlus aria-hidden className="size-4" />}
        >
          Directory
        </Button>
        <CopyAs
          recipe={{
            python: `Sandbox.connect("${id}").files.list(${JSON.stringify(path)})`,
            curl: `curl -sS -H "X-API-KEY: $COFFER_API_KEY" -T ${shellWord("file.txt")} "$COFFER_URL${contentPath(id, join(path, "file.txt"))}"`,
          }}
        />
      </div>
      {progress !== undefined && (
        <p role="status" className="border-b border-line px-4 py-2 text-dim">
          Uploading {plainText(progress.name)}: {Math.round(progress.share * 100)} %
        </p>
      )}
      <Loaded query={query} what="Listing">
        {({ entries, more }) =>
          entries.length === 0 ? (
            <Empty icon={<Folder aria-hidden className="size-6" />} title="This directory is empty">
              {allowed && "Drop files here to upload them."}
            </Empty>
          ) : (
            <>
              <Table
                label="Files"
                head={["Name", "Size", { wide: "Modified" }, { wide: "Owner" }, { wide: "Permissions" }, ""]}
              >
                {entries.slice(0, most).map((entry) => {
                  const directory = entry.kind === "directory";
                  const Icon = directory ? Folder : entry.symlink_target ? Link2 : FileIcon;
                  return (
                    <tr key={entry.name} className="hover:bg-raised">
                      <Cell className="max-w-36 min-w-28 sm:max-w-xs sm:min-w-48">
                        <button
                          type="button"
                          className="flex max-w-full items-center gap-2 text-left"
                          onClick={() =>
                            directory ? go(entry.path) : void navigate({ search: { path, open: entry.path } })
                          }
                        >
                          <Icon
                            aria-hidden
                            className={classes("size-4 shrink-0", directory ? "text-accent" : "text-dim")}
                          />
                          <span className="truncate">{plainText(entry.name)}</span>
                          {entry.symlink_target && (
                            <span className="truncate text-xs text-dim">→ {plainText(entry.symlink_target)}</span>
                          )}
                        </button>
                      </Cell>
                      <Cell className="whitespace-nowrap text-dim">{directory ? "–" : bytes(entry.size_bytes)}</Cell>
                      <Cell wide className="whitespace-nowrap text-dim">
                        {entry.modified_at ? <Ago at={entry.modified_at} /> : "–"}
                      </Cell>
                      <Cell wide className="text-dim">
                        {plainText(entry.owner)}
                      </Cell>
                      <Cell wide className="font-mono text-xs text-dim">
                        {entry.permissions}
                      </Cell>
                      <Cell>
                        <div className="flex justify-end">
                          {!directory && (
                            <Button
                              tone="ghost"
                              aria-label={`Download ${plainText(entry.name)}`}
                              onClick={() => void download(id, entry.path).catch(toastError)}
                              icon={<Download aria-hidden className="size-4" />}
                            />
                          )}
                          <Button
                            tone="ghost"
                            disabled={!allowed}
                            aria-label={`Delete ${plainText(entry.name)}`}
                            onClick={() => setRemoving(entry)}
                            icon={<Trash2 aria-hidden className="size-4" />}
                          />
                        </div>
                      </Cell>
                    </tr>
                  );
                })}
                {entries.length > most && (
                  <tr key={most} ref={end} aria-hidden>
                    <td className="h-px" />
                  </tr>
                )}
              </Table>
              {more && <p className="border-t border-line px-4 py-2 text-dim">The first 5000 entries are shown.</p>}
            </>
          )
        }
      </Loaded>
      {making && <NewDirectory id={id} path={path} onClose={() => setMaking(false)} />}
      <Confirm
        open={removing !== undefined}
        onClose={() => setRemoving(undefined)}
        title={`Delete ${plainText(removing?.name ?? "")}?`}
        action="Delete"
        danger
        onConfirm={async () => {
          const where = contentPath(id, removing?.path ?? "");
          await raw(`${where}${removing?.kind === "directory" ? "?recursive=true" : ""}`, { method: "DELETE" });
          await queries.invalidateQueries({ queryKey: ["files", id] });
        }}
      >
        {removing?.kind === "directory"
          ? "The directory and everything in it are deleted."
          : "The file is deleted. This cannot be undone."}{" "}
        There is no undo.
        <code className="mt-2 block font-mono text-xs break-all">
          {curl("DELETE", contentPath(id, removing?.path ?? ""))}
        </code>
      </Confirm>
    </div>
  );
}

export function Files() {
  const { id } = useParams({ from: "/shell/sandboxes/$id" });
  const sandbox = useSandbox(id).data;
  if (sandbox === undefined) return null;
  return (
    <Awake sandbox={sandbox} what="Its files are safe. Resume it to see them.">
      <Browser id={id} />
    </Awake>
  );
}
