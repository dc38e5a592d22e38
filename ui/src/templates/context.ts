// The files of a build's context, packed as a tar archive in the browser.

export interface ContextFile {
  path: string;
  data: Blob;
  modifiedMs?: number;
  executable?: boolean;
}

const BLOCK = 512;
const text = new TextEncoder();

function put(header: Uint8Array, at: number, bytes: Uint8Array, room: number) {
  header.set(bytes.subarray(0, room), at);
}

const octal = (value: number, digits: number) => text.encode(value.toString(8).padStart(digits, "0"));

function header(name: Uint8Array, size: number, modified: number, mode: number, kind: string): Uint8Array<ArrayBuffer> {
  const made = new Uint8Array(BLOCK);
  put(made, 0, name, 100);
  put(made, 100, octal(mode, 7), 7);
  put(made, 108, octal(0, 7), 7);
  put(made, 116, octal(0, 7), 7);
  put(made, 124, octal(size, 11), 11);
  put(made, 136, octal(modified, 11), 11);
  made.fill(0x20, 148, 156);
  put(made, 156, text.encode(kind), 1);
  put(made, 257, text.encode("ustar\u000000"), 8);
  const sum = made.reduce((total, byte) => total + byte, 0);
  put(made, 148, octal(sum, 6), 6);
  made[154] = 0;
  return made;
}

const padding = (size: number) => new Uint8Array((BLOCK - (size % BLOCK)) % BLOCK);

/** A record of a PAX header: its own length is part of it. */
function record(name: string, value: string): Uint8Array {
  const rest = text.encode(` ${name}=${value}\n`).length;
  let length = rest + 1;
  while (String(length).length + rest !== length) length = String(length).length + rest;
  return text.encode(`${length} ${name}=${value}\n`);
}

/** Paths as an archive has them: relative, with slashes, without anything that leads out. */
export function cleanPath(path: string): string | undefined {
  const parts = path
    .replaceAll("\\", "/")
    .split("/")
    .filter((part) => part !== "" && part !== ".");
  return parts.length === 0 || parts.includes("..") ? undefined : parts.join("/");
}

/** A tar archive of those files. Nothing is read into memory: the parts are blobs. */
export function tarOf(files: ContextFile[]): Blob {
  const parts: BlobPart[] = [];
  for (const { path, data, modifiedMs = 0, executable = false } of files) {
    const clean = cleanPath(path);
    if (clean === undefined) continue;
    const name = text.encode(clean);
    const modified = Math.max(0, Math.floor(modifiedMs / 1000));
    if (name.length > 100 || data.size >= 8 ** 11) {
      const records = [record("path", clean), ...(data.size >= 8 ** 11 ? [record("size", String(data.size))] : [])];
      const size = records.reduce((total, one) => total + one.length, 0);
      parts.push(header(text.encode("pax"), size, modified, 0o644, "x"), ...(records as BlobPart[]), padding(size));
    }
    parts.push(header(name, data.size % 8 ** 11, modified, executable ? 0o755 : 0o644, "0"), data, padding(data.size));
  }
  parts.push(new Uint8Array(2 * BLOCK));
  return new Blob(parts, { type: "application/x-tar" });
}

/** The files of a folder that was picked, without the folder's own name in front. */
export function fromPicked(files: Iterable<File>): ContextFile[] {
  return [...files].map((file) => {
    const inside = file.webkitRelativePath.split("/").slice(1).join("/");
    return { path: inside === "" ? file.name : inside, data: file, modifiedMs: file.lastModified };
  });
}

/** What was dropped: files, and folders with everything in them. */
export async function fromDropped(items: DataTransferItemList): Promise<ContextFile[]> {
  // The list is empty once the event is over, so that all entries are taken at once.
  const entries = [...items].flatMap((item) => item.webkitGetAsEntry() ?? []);
  const found: ContextFile[] = [];
  const walk = async (entry: FileSystemEntry, path: string): Promise<void> => {
    if (entry.isFile) {
      const file = await new Promise<File>((done, failed) => (entry as FileSystemFileEntry).file(done, failed));
      found.push({ path, data: file, modifiedMs: file.lastModified });
      return;
    }
    const reader = (entry as FileSystemDirectoryEntry).createReader();
    for (;;) {
      // A reader answers with a hundred at a time, and with none at its end.
      const some = await new Promise<FileSystemEntry[]>((done, failed) => reader.readEntries(done, failed));
      if (some.length === 0) return;
      for (const one of some) await walk(one, path === "" ? one.name : `${path}/${one.name}`);
    }
  };
  // One folder alone is the context itself, as if it had been picked.
  const [only] = entries;
  const alone = entries.length === 1 && only?.isDirectory === true;
  for (const entry of entries) await walk(entry, alone ? "" : entry.name);
  return found;
}

const ARCHIVE = /\.(tar|tar\.gz|tgz)$/i;

/** Whether that is an archive to send as it is. */
export function isArchive(files: { path: string }[]): boolean {
  return files.length === 1 && ARCHIVE.test(files[0]?.path ?? "");
}

/** What nobody means to upload with a folder. */
const SKIPPED = [".git", "node_modules", ".venv", "__pycache__", "target"];

export function withoutClutter(files: ContextFile[]): { kept: ContextFile[]; skipped: Map<string, number> } {
  const skipped = new Map<string, number>();
  const kept = files.filter(({ path }) => {
    const found = path
      .split("/")
      .slice(0, -1)
      .find((part) => SKIPPED.includes(part));
    if (found !== undefined) skipped.set(found, (skipped.get(found) ?? 0) + 1);
    return found === undefined;
  });
  return { kept, skipped };
}
