import { expect, test } from "vitest";
import { inlines, parseMarkdown, safeAddress } from "./markdown";

test("blocks are known by their beginnings", () => {
  const kinds = parseMarkdown(
    "# Title\n\nwords **here**\nand on\n\n- one\n- [x] two\n  more\n\n```rust\nfn a() {}\n```\n> said\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n---\n1. first",
  ).map((block) => block.kind);
  expect(kinds).toEqual(["heading", "paragraph", "list", "code", "quote", "table", "rule", "list"]);
});

test("items have their own blocks and boxes", () => {
  const [list] = parseMarkdown("- [x] two\n  more\n  - inner\n- last");
  expect(list?.kind === "list" && list.items.map((item) => [item.done, item.blocks.map((one) => one.kind)])).toEqual([
    [true, ["paragraph", "list"]],
    [undefined, ["paragraph"]],
  ]);
});

test("only plain web addresses become links, and HTML stays text", () => {
  expect(safeAddress("javascript:alert(1)")).toBeUndefined();
  expect(safeAddress("https://github.com@evil.example/")).toBeUndefined();
  expect(inlines("[x](javascript:alert(1))")).toEqual([
    { kind: "text", text: "[x](javascript:alert(1)" },
    { kind: "text", text: ")" },
  ]);
  expect(inlines("see https://a.example/b.")).toMatchObject([
    { kind: "text" },
    { kind: "link", href: "https://a.example/b" },
    { kind: "text", text: "." },
  ]);
  expect(inlines("<img src=x onerror=alert(1)>")).toEqual([{ kind: "text", text: "<img src=x onerror=alert(1)>" }]);
});

test("hostile nesting and length end", () => {
  const quote = `${">".repeat(5000)} x`;
  expect(parseMarkdown(quote).length).toBe(1);
  const start = performance.now();
  parseMarkdown("*a ".repeat(5000));
  parseMarkdown("[".repeat(20_000));
  parseMarkdown("`".repeat(20_001));
  expect(performance.now() - start).toBeLessThan(3000);
});
