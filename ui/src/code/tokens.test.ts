import { readFileSync } from "node:fs";
import { rust } from "@codemirror/legacy-modes/mode/rust";
import { python } from "@codemirror/legacy-modes/mode/python";
import type { StreamParser } from "@codemirror/language";
import { expect, test } from "vitest";
import { languageOfPath, languageOfWord } from "./languages";
import { KINDS, kindOf, tokensOf, type LineTokens } from "./tokens";

function shown(line: string, tokens: LineTokens): string {
  let [at, text] = [0, ""];
  for (let place = 0; place < tokens.length; place += 2) {
    const end = at + (tokens[place] ?? 0);
    const kind = KINDS[tokens[place + 1] ?? 0];
    text += kind === "" ? line.slice(at, end) : `<${kind}:${line.slice(at, end)}>`;
    at = end;
  }
  return text + line.slice(at);
}

test("lines are cut into parts that add up to them, over more than one line", () => {
  const lines = ['fn main() { let x = "a"; }', "/* a", "b */ let y = 7; // c", ""];
  const tokens = tokensOf(rust, [lines], 1000)[0] ?? [];
  const all = lines.map((line, at) => shown(line, tokens[at] ?? []));
  expect(all[0]).toContain("<k:fn>");
  expect(all[0]).toContain('<s:"a">');
  expect(all[1]).toBe("<c:/* a>");
  expect(all[2]).toMatch(/^<c:b \*\/> <k:let>/);
  lines.forEach((line, at) => expect(all[at]?.replaceAll(/<\w:|>/g, "")).toBe(line));
});

test("each group begins anew", () => {
  const [one, two] = tokensOf(python, [['"""', "x = 1"], ["x = 1"]], 1000);
  expect(shown("x = 1", one?.[1] ?? [])).toBe("<s:x = 1>");
  expect(shown("x = 1", two?.[0] ?? [])).toContain("<n:1>");
});

test("a file that takes too long, a reader that breaks or stands still, and a line of data stay plain", () => {
  let clock = 0;
  const slow: StreamParser<unknown> = {
    token(stream) {
      clock += 10;
      stream.skipToEnd();
      return "keyword";
    },
  };
  const many = Array.from({ length: 1000 }, () => "x");
  const late = tokensOf(slow, [many], 200, () => clock)[0] ?? [];
  expect(late).toHaveLength(1000);
  expect(late.filter((tokens) => tokens.length > 0).length).toBeLessThan(60);
  const breaks: StreamParser<unknown> = {
    token: () => {
      throw new Error("no");
    },
  };
  expect(tokensOf(breaks, [["a", "b"]], 100)).toEqual([[[], []]]);
  expect(tokensOf({ token: () => null }, [["abc"]], 100)).toEqual([[[]]]);
  const long = "let x = 1; ".repeat(50_000);
  expect(tokensOf(rust as StreamParser<unknown>, [[long]], 100)).toEqual([[[]]]);
});

test("words of readers are kinds, and no name of an object is one", () => {
  expect(["keyword", "variableName.definition", "string.special", "def", "variableName"].map(kindOf)).toEqual([
    "k",
    "d",
    "s",
    "d",
    "",
  ]);
  expect(kindOf("constructor")).toBe("");
  expect(languageOfPath("src/a/Dockerfile")).toBe("dockerfile");
  expect(languageOfPath("x/lib.RS")).toBe("rust");
  expect(languageOfPath("constructor")).toBeUndefined();
  expect(languageOfPath("a.__proto__")).toBeUndefined();
  expect([languageOfWord("sh"), languageOfWord("TypeScript"), languageOfWord("toString")]).toEqual([
    "shell",
    "typescript",
    undefined,
  ]);
});

test("every colour can be read on the page and on both sides of a diff", () => {
  const vars = (text: string, of: RegExp): Record<string, string | undefined> =>
    Object.fromEntries<string | undefined>(
      [...(of.exec(text)?.[1] ?? "").matchAll(/--([\w-]+): (#\w{6})/g)].map(([, name, at]) => [name ?? "", at]),
    );
  const css = readFileSync(new URL("./code.css", import.meta.url), "utf8");
  const page = readFileSync(new URL("../style.css", import.meta.url), "utf8");
  const light = (colour: string) => {
    const part = (from: number) => {
      const value = Number.parseInt(colour.slice(from, from + 2), 16) / 255;
      return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    };
    return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
  };
  for (const of of [/:root \{([^}]*)\}/, /\.dark \{([^}]*)\}/]) {
    const [colours, grounds] = [vars(css, of), vars(page, of)];
    expect(Object.keys(colours)).toHaveLength(8);
    for (const [name, colour] of Object.entries(colours)) {
      for (const ground of ["surface", "raised", "ok-soft", "bad-soft"]) {
        const [a, b] = [light(colour ?? ""), light(grounds[ground] ?? "")].sort((x, y) => y - x);
        expect(((a ?? 0) + 0.05) / ((b ?? 0) + 0.05), `${name} on ${ground}`).toBeGreaterThanOrEqual(4.5);
      }
    }
  }
});
