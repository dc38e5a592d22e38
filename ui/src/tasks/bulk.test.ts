import { expect, it } from "vitest";
import { onEach } from "./bulk";

it("every task is acted on once, at most four at a time, and one failure stops no other", async () => {
  const seen: number[] = [];
  let [running, most] = [0, 0];
  const failed = await onEach([...Array(25).keys()], async (one) => {
    most = Math.max(most, ++running);
    await Promise.resolve();
    seen.push(one);
    running -= 1;
    if (one === 7) throw new Error("refused");
  });
  expect(seen.sort((a, b) => a - b)).toEqual([...Array(25).keys()]);
  expect(most).toBe(4);
  expect(failed.map(([one]) => one)).toEqual([7]);
});
