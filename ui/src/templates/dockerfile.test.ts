import { expect, test } from "vitest";
import { copiesFiles, refusedLine, templateNameProblem } from "./dockerfile";

test("a file that copies from its context is known, and one that fetches or copies from a stage is not", () => {
  expect(copiesFiles("FROM base\nCOPY . /app\n")).toBe(true);
  expect(copiesFiles("FROM base\n  add --chown=user a b")).toBe(true);
  expect(copiesFiles("FROM base\nADD https://example.com/x /x")).toBe(false);
  expect(copiesFiles("FROM base\nCOPY --from=build /a /b")).toBe(false);
  expect(copiesFiles("FROM base\nCOPY <<EOF /x\nhi\nEOF")).toBe(false);
  expect(copiesFiles("FROM base\n# COPY a b\nRUN echo COPY a b")).toBe(false);
});

test("the line that the server refused is found in what it says", () => {
  expect(refusedLine("line 3 of the Dockerfile: unknown instruction 'RUM'")).toBe(3);
  expect(refusedLine("the quota is used up")).toBeUndefined();
});

test("names that the server refuses are told before", () => {
  expect(templateNameProblem("my-app_2")).toBeUndefined();
  for (const name of ["My App", "-a", "a:b", "a/b"]) expect(templateNameProblem(name)).toBeDefined();
});
