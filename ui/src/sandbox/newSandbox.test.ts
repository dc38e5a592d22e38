import { expect, test } from "vitest";
import { blankDraft, mountPath, recipeOf, toNewSandbox } from "./newSandbox";

test("what was left alone is left out, so that the server's defaults apply", () => {
  expect(toNewSandbox(blankDraft())).toEqual({ timeout_s: 3600, metadata: {} });
});

test("sizes and volumes are sent as the API has them", () => {
  const draft = { ...blankDraft("node", "cache"), cpus: "2", memoryMib: 1536, diskMib: 2048, name: " try " };
  expect(toNewSandbox(draft)).toEqual({
    template: "node",
    timeout_s: 3600,
    cpu_count: 2,
    memory_mib: 1536,
    disk_mib: 2048,
    volumes: [{ name: "cache", path: "/data", read_only: false }],
    metadata: { name: "try" },
  });
});

test("a mount at a bad path is refused before it is sent, and a row without a volume is nothing", () => {
  const mounts = [{ name: "cache", path: "data", read_only: false }];
  expect(() => toNewSandbox({ ...blankDraft(), mounts })).toThrow(/absolute/);
  expect(toNewSandbox({ ...blankDraft(), mounts: [{ name: "", path: "data", read_only: false }] }).volumes).toBe(
    undefined,
  );
});

test("the second volume goes elsewhere, and never where one is", () => {
  const first = { name: "a", path: "/data", read_only: false };
  expect(mountPath("a", [])).toBe("/data");
  expect(mountPath("b", [first])).toBe("/mnt/b");
  expect(mountPath("b", [first, { name: "b", path: "/mnt/b", read_only: false }])).toBe("");
});

test("the programs mount what the form mounts", () => {
  const { python, js, curl } = recipeOf(blankDraft("node", "cache"));
  expect(python).toContain('Sandbox.create("node", timeout=3600, volume_mounts={"/data": "cache"})');
  expect(js).toContain('volumeMounts: { "/data": "cache" }');
  expect(curl).toContain('"volumes":[{"name":"cache","path":"/data","read_only":false}]');
});
