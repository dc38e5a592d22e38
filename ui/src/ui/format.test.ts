import { describe, expect, it } from "vitest";
import { bytes, percentile, plainText, shellWord, span } from "./format";

describe("plainText", () => {
  it("leaves no way to move, colour, retitle or turn text around", () => {
    const hostile =
      "a\u001b[31mred\u001b[0m\u001b]0;title\u0007b\u001b]8;;http://x\u001b\\c\u0008\r\u009b31m\u202egnp.exe";
    expect(plainText(hostile)).toBe("aredbc31m\ufffdgnp.exe");
  });
  it("keeps what people write", () => {
    expect(plainText("<b>ü\t€ 日本 😀</b>")).toBe("<b>ü\t€ 日本 😀</b>");
  });
});

describe("shellWord", () => {
  it("quotes what a shell would read otherwise", () => {
    expect(shellWord("/home/user/a.txt")).toBe("/home/user/a.txt");
    expect(shellWord("it's $(rm)")).toBe(`'it'\\''s $(rm)'`);
    expect(shellWord("")).toBe("''");
  });
});

describe("figures", () => {
  it("are short", () => {
    expect([0, 1023, 1536, 5 * 1024 ** 3].map(bytes)).toEqual(["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]);
    expect([400, 61_000, 3_600_000, 90_061_000].map(span)).toEqual(["0 s", "1 m", "1 h", "1 d 1 h"]);
  });
  it("have percentiles that were measured", () => {
    expect(percentile([1, 2, 3, 4], 0.5)).toBe(2);
    expect(percentile([1, 2, 3, 4], 0.99)).toBe(4);
    expect(percentile([], 0.5)).toBeUndefined();
  });
});
