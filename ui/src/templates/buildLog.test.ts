import { expect, test } from "vitest";
import { openByDefault, tookMs, toSteps, type LogLine } from "./buildLog";

const line = (second: number, step: string | null, message: string, level = "info"): LogLine => ({
  at: new Date(second * 1000).toISOString(),
  level,
  step,
  message,
});

const LOG = [
  line(0, "base", "[base] debian:12 is the template debian-12"),
  line(1, "1", "[1/3] CACHED WORKDIR /app"),
  line(1, "2", "[2/3] RUN apt-get update"),
  line(2, "2", "Hit:1 http://deb.debian.org"),
  line(7, "3", "[3/3] RUN false"),
  line(9, "3", "oh no", "warn"),
];

test("lines become steps with places, times and what is cached", () => {
  const steps = toSteps(LOG, { state: "building" });
  expect(steps.map(({ id, title, place, state }) => [id, title, place, state])).toEqual([
    ["base", "Base", undefined, "done"],
    ["1", "WORKDIR /app", "1/3", "cached"],
    ["2", "RUN apt-get update", "2/3", "done"],
    ["3", "RUN false", "3/3", "running"],
  ]);
  expect(steps.map(tookMs)).toEqual([1000, undefined, 6000, undefined]);
  expect(steps[2]?.lines.map(({ message }) => message)).toEqual(["Hit:1 http://deb.debian.org"]);
  expect(openByDefault(steps)).toEqual(new Set(["3"]));
});

test("the step that failed is open, and those before it are not", () => {
  const steps = toSteps([...LOG, line(10, "3", "failed to run command 'false'", "error")], {
    state: "error",
    endedAt: new Date(10_000).toISOString(),
    failedStep: "3",
  });
  expect(steps.map(({ state }) => state)).toEqual(["done", "cached", "done", "failed"]);
  expect(tookMs(steps[3] as never)).toBe(3000);
  expect(openByDefault(steps)).toEqual(new Set(["3"]));
});

test("a cancelled build stopped where it was, and a ready one is done", () => {
  expect(toSteps(LOG, { state: "error" }).at(-1)?.state).toBe("stopped");
  expect(toSteps(LOG, { state: "ready" }).map(({ state }) => state)).toEqual(["done", "cached", "done", "done"]);
  expect(openByDefault(toSteps(LOG, { state: "ready" }))).toEqual(new Set());
});

test("a step that is begun again after a restart stays one step", () => {
  const again = [
    ...LOG,
    line(20, "base", "beginning again"),
    line(21, "3", "[3/3] RUN false"),
    line(22, "3", "once more"),
  ];
  const steps = toSteps(again, { state: "building" });
  expect(steps.map(({ id }) => id)).toEqual(["base", "1", "2", "3"]);
  expect(steps[3]?.lines.map(({ message }) => message)).toEqual(["oh no", "once more"]);
});

test("output that looks like the head of another step stays output of its own", () => {
  const steps = toSteps([line(0, "1", "[1/1] RUN make"), line(1, "1", "[base] not really")], { state: "building" });
  expect(steps).toHaveLength(1);
  expect(steps[0]?.lines).toHaveLength(1);
});
