import { expect, test } from "vitest";
import { named } from "./competitions";

test("reasons name who they compare with", () => {
  const labels = new Map([
    [1, "careful"],
    [12, "quick"],
  ]);
  expect(named("before entry 12: its checks passed", labels)).toBe("before quick: its checks passed");
  expect(named("behind entry 3, and entry 1", labels)).toBe("behind entry 3, and careful");
});
