// Reads a patch as git writes it, into files, hunks and numbered lines.

export interface PatchLine {
  kind: "context" | "added" | "removed" | "note";
  text: string;
  /** Its number in what was and in what is. */
  old?: number;
  now?: number;
}

export interface Hunk {
  head: string;
  lines: PatchLine[];
  /** Where it begins in what was and in what is. */
  old: number;
  now: number;
}

export interface PatchFile {
  path: string;
  hunks: Hunk[];
}

const HEAD = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/;

/** git quotes names that are not plain, with octal bytes. */
export function unquote(name: string): string {
  if (!name.startsWith('"') || !name.endsWith('"')) return name;
  const bytes: number[] = [];
  const plain: Record<string, number> = { n: 10, t: 9, r: 13, '"': 34, "\\": 92, a: 7, b: 8, f: 12, v: 11 };
  const inner = name.slice(1, -1);
  for (let at = 0; at < inner.length; at += 1) {
    if (inner[at] !== "\\") {
      bytes.push(...new TextEncoder().encode(inner[at]));
      continue;
    }
    const octal = /^[0-3][0-7]{2}/.exec(inner.slice(at + 1));
    if (octal !== null) {
      bytes.push(Number.parseInt(octal[0], 8));
      at += 3;
    } else {
      bytes.push(plain[inner[at + 1] ?? ""] ?? 63);
      at += 1;
    }
  }
  return new TextDecoder().decode(Uint8Array.from(bytes));
}

function sideOf(line: string): string | undefined {
  const name = unquote(line.slice(4).replace(/\t$/, ""));
  return name === "/dev/null" ? undefined : name.replace(/^[ab]\//, "");
}

export function parsePatch(patch: string): PatchFile[] {
  const files: PatchFile[] = [];
  let file: PatchFile | undefined;
  let hunk: Hunk | undefined;
  let left = { old: 0, now: 0 };
  let at = { old: 0, now: 0 };
  for (const line of patch.split("\n")) {
    // Within a hunk its own counts say what a line is: a removed line may look like a header.
    if (hunk !== undefined && (left.old > 0 || left.now > 0)) {
      const text = line.slice(1);
      if (line.startsWith("+")) {
        hunk.lines.push({ kind: "added", text, now: at.now++ });
        left.now -= 1;
      } else if (line.startsWith("-")) {
        hunk.lines.push({ kind: "removed", text, old: at.old++ });
        left.old -= 1;
      } else if (line.startsWith("\\")) {
        hunk.lines.push({ kind: "note", text: line.slice(2) });
      } else {
        hunk.lines.push({ kind: "context", text, old: at.old++, now: at.now++ });
        left.old -= 1;
        left.now -= 1;
      }
      continue;
    }
    if (line.startsWith("diff --git ")) {
      file = { path: "", hunks: [] };
      hunk = undefined;
      files.push(file);
    } else if (file !== undefined && (line.startsWith("--- ") || line.startsWith("+++ "))) {
      file.path = sideOf(line) ?? file.path;
    } else if (file !== undefined && /^rename to |^copy to /.test(line)) {
      file.path = unquote(line.replace(/^(rename|copy) to /, ""));
    } else if (hunk !== undefined && line.startsWith("\\")) {
      hunk.lines.push({ kind: "note", text: line.slice(2) });
    } else {
      const head = HEAD.exec(line);
      if (head === null) continue;
      // Hunks alone are the changes of a file that is named elsewhere.
      if (file === undefined) files.push((file = { path: "", hunks: [] }));
      at = { old: Number(head[1]), now: Number(head[3]) };
      left = { old: Number(head[2] ?? 1), now: Number(head[4] ?? 1) };
      hunk = { head: line, lines: [], ...at };
      file.hunks.push(hunk);
    }
  }
  return files;
}
