// Contents of files, to and from a sandbox.
import { ApiError, raw } from "./client";
import { send } from "./send";

export function contentPath(id: string, path: string): string {
  const parts = path.split("/").filter(Boolean).map(encodeURIComponent);
  return `/api/v1/sandboxes/${encodeURIComponent(id)}/files/${parts.join("/")}`;
}

/** Sends a file from the disk, without holding it in memory. */
export async function upload(id: string, path: string, file: File, onProgress: (share: number) => void): Promise<void> {
  await send("PUT", contentPath(id, path), file, (sent, total) => onProgress(sent / total));
}

/** Saves a file. Its name is the last part of the path. */
export async function download(id: string, path: string) {
  await saveAnswer(await raw(contentPath(id, path)), path.split("/").at(-1) ?? "file");
}

/** Saves an answer as a file. Its type is never believed. */
export async function saveAnswer(answer: Response, name: string) {
  const blob = new Blob([await answer.blob()], { type: "application/octet-stream" });
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

export const LARGEST_SHOWN = 1 << 20;

const PICTURES: Record<string, string> = {
  png: "image/png",
  jpg: "image/jpeg",
  jpeg: "image/jpeg",
  gif: "image/gif",
  webp: "image/webp",
  avif: "image/avif",
};

export type Content =
  /** `version` is another whenever the file is. */
  | { kind: "text"; text: string; whole: boolean; version?: string }
  | { kind: "picture"; address: string }
  | { kind: "binary" };

function versionIn(headers: Headers): string | undefined {
  return headers.get("etag") ?? headers.get("last-modified") ?? undefined;
}

/** Which version of a file there is now; none where there is no file. */
export async function fileVersion(id: string, path: string): Promise<string | undefined> {
  try {
    return versionIn((await raw(contentPath(id, path), { method: "HEAD" })).headers);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return undefined;
    throw error;
  }
}

/** Bytes as text from which the same bytes can be made; throws where that is not so. A cut may go through a letter. */
export function decoded(bytes: Uint8Array, whole: boolean): string {
  return new TextDecoder("utf-8", { fatal: whole, ignoreBOM: true }).decode(bytes);
}

/** The beginning of a file, as far as a page can show it. */
export async function readFile(id: string, path: string): Promise<Content> {
  const picture = PICTURES[path.split(".").at(-1)?.toLowerCase() ?? ""];
  const most = picture === undefined ? LARGEST_SHOWN : 8 * LARGEST_SHOWN;
  const answer = await raw(contentPath(id, path), { headers: { range: `bytes=0-${most - 1}` } }).catch(
    (error: unknown) => {
      // An empty file has no first byte to ask for.
      if (error instanceof ApiError && error.status === 416) return new Response("");
      throw error;
    },
  );
  const bytes = new Uint8Array(await answer.arrayBuffer());
  const total = Number(answer.headers.get("content-range")?.split("/").at(-1) ?? bytes.length);
  const whole = !(total > bytes.length);
  if (picture !== undefined && whole) {
    return { kind: "picture", address: URL.createObjectURL(new Blob([bytes], { type: picture })) };
  }
  if (bytes.subarray(0, 8192).includes(0)) return { kind: "binary" };
  try {
    const text = decoded(bytes, whole);
    return { kind: "text", text, whole, version: versionIn(answer.headers) ?? (await fileVersion(id, path)) };
  } catch (error) {
    if (error instanceof ApiError) throw error;
    return { kind: "binary" };
  }
}

export async function writeFile(id: string, path: string, text: string) {
  await raw(contentPath(id, path), {
    method: "PUT",
    headers: { "content-type": "application/octet-stream" },
    body: new Blob([text]),
  });
}
