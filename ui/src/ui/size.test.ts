import { expect, test } from "vitest";
import { asSize, toMib } from "./size";

test("a size is written as people would, and read back as the same number", () => {
  expect(asSize(undefined)).toEqual({ amount: "", unit: "GiB" });
  expect(asSize(10_240)).toEqual({ amount: "10", unit: "GiB" });
  expect(asSize(1536)).toEqual({ amount: "1.5", unit: "GiB" });
  expect(asSize(300)).toEqual({ amount: "300", unit: "MiB" });
  for (const mib of [1, 300, 512, 1000, 1536, 16_777_216]) expect(toMib(asSize(mib))).toBe(mib);
});

test("what is no number is the default, and nothing is rounded to zero", () => {
  expect(toMib({ amount: "", unit: "GiB" })).toBeUndefined();
  expect(toMib({ amount: "many", unit: "GiB" })).toBeUndefined();
  expect(toMib({ amount: "0.0001", unit: "GiB" })).toBe(1);
  expect(toMib({ amount: "0.3", unit: "GiB" })).toBe(307);
});
