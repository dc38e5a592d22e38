import { expect, test } from "vitest";
import { toLine, toWords } from "./words";

test("words are separated by spaces and held together by quotes", () => {
  expect(toWords("  claude -p {prompt}  ")).toEqual(["claude", "-p", "{prompt}"]);
  expect(toWords(`sh -c 'echo "$0" > a.txt' {prompt}`)).toEqual(["sh", "-c", `echo "$0" > a.txt`, "{prompt}"]);
  expect(toWords(`say "a \\"b\\" c" d\\ e --x='1 2'`)).toEqual(["say", `a "b" c`, "d e", "--x=1 2"]);
  expect(toWords(`a '' b`)).toEqual(["a", "", "b"]);
  expect(toWords("")).toEqual([]);
});

test("words come back as they were", () => {
  const words = ["sh", "-c", 'echo "$0" > a.txt\nexit', "", "back\\slash", "it's", "{prompt}", "ä b"];
  expect(toWords(toLine(words))).toEqual(words);
});
