import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { LogReader } from "./logReader";

const line = (message: string) => ({ at: "", level: "info", source: "stdout", message });

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

it("rests longer and longer while it is refused, and not at all when somebody wants it", async () => {
  const ask = vi.fn().mockRejectedValue(new Error("no"));
  // As the page does: whenever something changed it asks for what is missing.
  const reader: LogReader = new LogReader(ask, () => void (reader.pages.begun || reader.loadNext()));
  reader.start();
  await vi.advanceTimersByTimeAsync(900);
  expect(ask).toHaveBeenCalledTimes(1);
  await vi.advanceTimersByTimeAsync(7000);
  expect(ask).toHaveBeenCalledTimes(4);
  expect(reader.error).toEqual(new Error("no"));
  await vi.advanceTimersByTimeAsync(3_600_000);
  expect(ask.mock.calls.length).toBeLessThan(130);
  ask.mockResolvedValue({ items: [line("a")], next: null });
  const before = ask.mock.calls.length;
  reader.retry();
  await vi.advanceTimersByTimeAsync(0);
  expect([ask.mock.calls.length - before, reader.error, reader.pages.count]).toEqual([1, undefined, 1]);
});

it("does not ask any more once it was stopped, and has no line twice", async () => {
  const answers: ((page: { items: ReturnType<typeof line>[]; next: null }) => void)[] = [];
  const reader = new LogReader(
    () => new Promise((done) => answers.push(done)),
    () => undefined,
  );
  reader.start();
  void reader.loadNext();
  void reader.loadNext();
  expect(answers.length).toBe(1);
  answers[0]?.({ items: [line("a")], next: null });
  await vi.advanceTimersByTimeAsync(0);
  // The page was not full: it is asked for whole, and only what is new is taken.
  void reader.loadNext();
  answers[1]?.({ items: [line("a"), line("b")], next: null });
  await vi.advanceTimersByTimeAsync(0);
  expect([0, 1, 2].map((at) => reader.pages.line(at)?.message)).toEqual(["a", "b", undefined]);
  reader.stop();
  void reader.loadNext();
  expect(answers.length).toBe(2);
});
