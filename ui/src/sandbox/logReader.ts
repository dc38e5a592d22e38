// Loads a log into `LogPages`: one request at a time, and after a refusal not before a while. Another filter is another
// reader, so that an answer that comes late finds only its own.
import { LogPages, type Line } from "./logPages";

const PAGE = 1000;
const FIRST_REST_MS = 1000;
const LONGEST_REST_MS = 30_000;

type Ask = (cursor: string | undefined, limit: number) => Promise<{ items: Line[]; next?: string | null }>;

export class LogReader {
  readonly pages = new LogPages();
  error: unknown;
  private busy = false;
  private open = false;
  private failures = 0;
  private resting: ReturnType<typeof setTimeout> | undefined;
  /** The last page, as long as it is not full; it is asked for again until it is. */
  private tail: { cursor: string | undefined; seen: number } = { cursor: undefined, seen: 0 };

  constructor(
    private readonly ask: Ask,
    private readonly changed: () => void,
  ) {}

  start() {
    this.open = true;
    void this.loadNext();
  }

  stop() {
    this.open = false;
    clearTimeout(this.resting);
    this.resting = undefined;
  }

  /** What comes next, or has been added at the end. */
  loadNext(): Promise<void> {
    return this.once(async () => {
      const { cursor, seen } = this.tail;
      const page = await this.ask(cursor, PAGE);
      const next = page.next ?? undefined;
      this.pages.append(cursor, page.items.slice(seen), next);
      this.tail = next === undefined ? { cursor, seen: page.items.length } : { cursor: next, seen: 0 };
    });
  }

  /** The page of a line that was dropped. */
  async restore(index: number): Promise<void> {
    const gone = this.pages.missing(index);
    if (gone === undefined) return;
    await this.once(async () => this.pages.restore(gone.page, (await this.ask(gone.cursor, gone.count)).items));
  }

  /** Asks again at once: somebody wants it. */
  retry() {
    clearTimeout(this.resting);
    this.resting = undefined;
    void this.loadNext();
  }

  private async once(work: () => Promise<void>) {
    if (!this.open || this.busy || this.resting !== undefined) return;
    this.busy = true;
    try {
      await work();
      this.failures = 0;
      this.error = undefined;
    } catch (failed) {
      this.error = failed;
      const rest = Math.min(LONGEST_REST_MS, FIRST_REST_MS * 2 ** this.failures);
      this.failures += 1;
      if (this.open) {
        this.resting = setTimeout(() => {
          this.resting = undefined;
          this.changed();
        }, rest);
      }
    } finally {
      this.busy = false;
      if (this.open) this.changed();
    }
  }
}
