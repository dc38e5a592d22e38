import { describe, expect, it } from "vitest";
import { LogPages, MOST_PAGES, type Line } from "./logPages";

const SIZE = 500;

function lines(page: number): Line[] {
  return Array.from({ length: SIZE }, (_, at) => ({
    at: "2026-01-01T00:00:00Z",
    level: "info",
    source: "stdout",
    message: `line ${page * SIZE + at}`,
  }));
}

describe("LogPages", () => {
  it("holds a few pages of a million lines, and finds each again", () => {
    const pages = new LogPages();
    for (let page = 0; page < 2000; page += 1)
      pages.append(page === 0 ? undefined : String(page), lines(page), String(page + 1));
    expect(pages.count).toBe(1_000_000);
    expect(pages.held).toBe(MOST_PAGES);
    expect(pages.line(999_999)?.message).toBe("line 999999");
    expect(pages.line(1234)).toBeUndefined();
    expect(pages.missing(1234)).toEqual({ page: 2, cursor: "2", count: SIZE });
    pages.restore(2, lines(2));
    expect(pages.line(1234)?.message).toBe("line 1234");
    expect(pages.missing(1234)).toBeUndefined();
    expect(pages.held).toBe(MOST_PAGES);
  });

  it("lets the last page grow", () => {
    const pages = new LogPages();
    pages.append(undefined, lines(0).slice(0, 3), undefined);
    pages.append(undefined, lines(0).slice(3, 5), undefined);
    expect([pages.count, pages.held, pages.line(4)?.message]).toEqual([5, 1, "line 4"]);
  });

  it("knows nothing beyond its end", () => {
    const pages = new LogPages();
    pages.append(undefined, [], undefined);
    expect([pages.count, pages.begun, pages.line(0), pages.missing(0)]).toEqual([0, true, undefined, undefined]);
  });
});
