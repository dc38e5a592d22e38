import { expect, test } from "vitest";
import type { Sandbox } from "../api/sandboxes";
import { mountersOf, mountProblem, mountSnippets, nameProblem } from "./volumes";

const sandbox = (id: string, ...names: string[]) =>
  ({ id, volumes: names.map((name, at) => ({ name, path: `/data${at}`, read_only: false })) }) as Sandbox;

test("a sandbox that mounts a volume twice is one of its users", () => {
  const found = mountersOf([sandbox("a", "cache", "cache"), sandbox("b", "cache", "models"), sandbox("c")]);
  expect(found.get("cache")?.map(({ id }) => id)).toEqual(["a", "b"]);
  expect(found.get("models")?.map(({ id }) => id)).toEqual(["b"]);
  expect(found.has("other")).toBe(false);
});

test("a name that the server would refuse is told before it is sent", () => {
  expect(nameProblem("", ["cache"])).toBeUndefined();
  expect(nameProblem("pip_cache-2", ["cache"])).toBeUndefined();
  expect(nameProblem("pip cache", [])).toMatch(/letters/);
  expect(nameProblem("a".repeat(129), [])).toMatch(/128/);
  expect(nameProblem("cache", ["cache"])).toMatch(/already/);
});

test("mounts must be at absolute paths, outside the kernel's, and not in each other", () => {
  const at = (...paths: string[]) => mountProblem(paths.map((path) => ({ name: "v", path, read_only: false })));
  expect(at("/data", "/models", "/database")).toBeUndefined();
  for (const path of ["data", "/", "", "/a//b", "/a/../b", "/data/"]) expect(at(path)).toBeDefined();
  for (const path of ["/proc", "/sys/x", "/dev/shm", "/run/user"]) expect(at(path)).toMatch(/cannot be mounted/);
  expect(at("/running")).toBeUndefined();
  expect(at("/data", "/data/sub")).toMatch(/inside each other/);
  expect(at("/data/sub", "/data")).toMatch(/inside each other/);
  expect(at("/data", "/data")).toMatch(/inside each other/);
});

test("every snippet names the volume and where it is mounted", () => {
  for (const [, text] of mountSnippets("pip-cache")) {
    expect(text).toContain("pip-cache");
    expect(text).toContain("/data");
  }
});
