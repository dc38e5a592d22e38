/// <reference types="node" />
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { expect, test } from "vitest";
import { cleanPath, isArchive, tarOf, withoutClutter, type ContextFile } from "./context";

const file = (path: string, data = "", executable = false): ContextFile => ({
  path,
  data: new Blob([data]),
  modifiedMs: 1_700_000_000_000,
  executable,
});

test("tar reads what the browser packs: long names, any letters, sizes at the edge of a block", async () => {
  const long = `${"directory-with-a-long-name/".repeat(6)}file.txt`;
  const files = [
    file("app/main.py", "print(1)\n"),
    file(long, "deep"),
    file("grüße/日本.txt", "x".repeat(512)),
    file("empty"),
    file("run.sh", "#!/bin/sh\n", true),
    file("../outside", "no"),
  ];
  const place = mkdtempSync(`${tmpdir()}/coffer-tar-`);
  try {
    writeFileSync(`${place}/a.tar`, new Uint8Array(await tarOf(files).arrayBuffer()));
    execFileSync("tar", ["-xf", "a.tar"], { cwd: place });
    for (const { path, data } of files.slice(0, 5))
      expect(readFileSync(`${place}/${path}`, "utf8")).toBe(await data.text());
    const listed = execFileSync("tar", ["-tvf", "a.tar"], { cwd: place, encoding: "utf8" });
    expect(listed.trim().split("\n")).toHaveLength(5);
    expect(listed).toMatch(/-rwxr-xr-x .*run\.sh/);
    expect(listed).not.toContain("outside");
  } finally {
    rmSync(place, { recursive: true });
  }
});

test("paths in an archive are relative and stay inside", () => {
  expect(cleanPath("./a//b")).toBe("a/b");
  expect(cleanPath("/etc/passwd")).toBe("etc/passwd");
  expect(cleanPath("a\\b")).toBe("a/b");
  for (const path of ["..", "a/../../b", "", "/"]) expect(cleanPath(path)).toBeUndefined();
});

test("one archive is sent as it is, and folders that nobody means are left out and counted", () => {
  expect(isArchive([{ path: "app.tar.gz" }])).toBe(true);
  expect(isArchive([{ path: "app.tar.gz" }, { path: "b" }])).toBe(false);
  expect(isArchive([{ path: "tar.txt" }])).toBe(false);
  const { kept, skipped } = withoutClutter([
    file("src/a"),
    file(".git/config"),
    file("web/node_modules/x/y"),
    file(".git/HEAD"),
    file("node_modules"),
  ]);
  expect(kept.map(({ path }) => path)).toEqual(["src/a", "node_modules"]);
  expect([...skipped]).toEqual([
    [".git", 2],
    ["node_modules", 1],
  ]);
});
