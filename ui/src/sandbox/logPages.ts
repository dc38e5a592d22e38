// A log of any length in a bounded window. The server gives pages from the oldest on, each with where the next one
// begins; what is far from where people look is dropped and asked for again when they come back.
import type { Schemas } from "../api/client";

export type Line = Schemas["LogLine"];

interface PageOf {
  /** Where it begins for the server; nothing is the beginning. */
  cursor?: string;
  count: number;
  lines?: Line[];
}

/** Pages held at a time: with 1,000 lines each, some megabytes. */
export const MOST_PAGES = 12;

export class LogPages {
  private pages: PageOf[] = [];
  private total = 0;
  /** Where the log goes on; none once its end was reached. */
  next: string | undefined;
  begun = false;

  get count(): number {
    return this.total;
  }

  get held(): number {
    return this.pages.filter((page) => page.lines !== undefined).length;
  }

  /** How many lines are in memory. */
  get heldLines(): number {
    return this.pages.reduce((sum, page) => sum + (page.lines?.length ?? 0), 0);
  }

  /** Adds what follows all that is known: a page that begins at `cursor`, or more of the last one. */
  append(cursor: string | undefined, lines: Line[], next: string | undefined) {
    this.begun = true;
    this.next = next;
    if (lines.length === 0) return;
    this.total += lines.length;
    const last = this.pages.at(-1);
    if (last !== undefined && last.cursor === cursor) {
      // The page was not full when it was first seen, and has grown.
      last.count += lines.length;
      last.lines = last.lines === undefined ? undefined : [...last.lines, ...lines];
      return;
    }
    this.pages.push({ cursor, count: lines.length, lines });
    this.dropFarFrom(this.pages.length - 1);
  }

  line(index: number): Line | undefined {
    const found = this.find(index);
    return found === undefined ? undefined : this.pages[found.page]?.lines?.[found.at];
  }

  /** The page of a line that was dropped, to be asked for again. */
  missing(index: number): { page: number; cursor?: string; count: number } | undefined {
    const found = this.find(index);
    const page = found === undefined ? undefined : this.pages[found.page];
    if (found === undefined || page === undefined || page.lines !== undefined) return undefined;
    return { page: found.page, cursor: page.cursor, count: page.count };
  }

  /** Puts back what was dropped. */
  restore(page: number, lines: Line[]) {
    const known = this.pages[page];
    if (known === undefined) return;
    known.lines = lines.slice(0, known.count);
    this.dropFarFrom(page);
  }

  private find(index: number): { page: number; at: number } | undefined {
    if (index < 0 || index >= this.total) return undefined;
    let at = index;
    for (let page = 0; page < this.pages.length; page += 1) {
      const count = this.pages[page]?.count ?? 0;
      if (at < count) return { page, at };
      at -= count;
    }
    return undefined;
  }

  private dropFarFrom(near: number) {
    const held = this.pages.map((page, at) => ({ page, at })).filter(({ page }) => page.lines !== undefined);
    held.sort((a, b) => Math.abs(b.at - near) - Math.abs(a.at - near));
    for (const { page } of held.slice(0, Math.max(0, held.length - MOST_PAGES))) page.lines = undefined;
  }
}
