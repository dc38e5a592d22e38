import { expect, test } from "vitest";
import type { Schemas } from "../api/client";
import { choicesOf } from "./choices";
import { BLANK } from "./draft";
import { buildRecipe, toNewBuild } from "./templates";

const template = (name: string, more: Partial<Schemas["Template"]> = {}) =>
  ({ name, kind: "server", state: "ready", is_default: false, ...more }) as Schemas["Template"];

test("sandboxes are offered what is ready, the project's own first, and never an empty root", () => {
  const now = Date.parse("2026-01-01T01:00:00Z");
  const groups = choicesOf(
    [
      template("base", { is_default: true }),
      template("scratch"),
      template("python", { state: "not_built" }),
      template("app", { kind: "project", summary: "the shop" }),
      template("broken", { kind: "project", state: "error" }),
    ],
    [
      { full_name: "team/after-setup", created_at: "2026-01-01T00:00:00Z" },
      { full_name: null, created_at: "2026-01-01T00:00:00Z" },
    ],
    now,
  );
  expect(groups.map(({ heading, choices }) => [heading, choices.map(({ name, note }) => `${name}: ${note}`)])).toEqual([
    ["This project", ["app: the shop"]],
    ["Server", ["base: default"]],
    ["Snapshots", ["team/after-setup: 1 h ago"]],
  ]);
});

test("a request has what was typed, and leaves the rest to the server", () => {
  const draft = { ...BLANK, name: "app", dockerfile: "FROM base\n" };
  expect(toNewBuild(draft)).toEqual({ name: "app", dockerfile: "FROM base\n" });
  const full = {
    ...draft,
    tag: " v2 ",
    args: "VERSION=1.2",
    secrets: "NPM_TOKEN, PIP",
    cpus: "2",
    memoryMib: 1024,
    start: "npm start",
    ready: "true",
    noCache: true,
  };
  expect(toNewBuild(full)).toEqual({
    name: "app",
    dockerfile: "FROM base\n",
    tags: ["v2"],
    args: { VERSION: "1.2" },
    secrets: ["NPM_TOKEN", "PIP"],
    cpu_count: 2,
    memory_mib: 1024,
    start_command: "npm start",
    ready_command: "true",
    force: true,
  });
  expect(() => toNewBuild({ ...draft, args: "nonsense" })).toThrow(/NAME=value/);
});

test("the command for a build with files sends them first, and puts their hash into the request", () => {
  const text = buildRecipe({ ...BLANK, name: "app", dockerfile: "FROM base\nCOPY . /app\n" }, true).curl;
  expect(text).toMatch(/^hash=.*template-files/s);
  expect(text).toContain(`"context":"'"$hash"'"`);
});
