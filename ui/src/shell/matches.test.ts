import { expect, test } from "vitest";
import { matches } from "./matches";

test("an entry matches if it has every word, not if it has the letters somewhere", () => {
  expect(matches("Move to Node 22", "vat")).toBe(0);
  expect(matches("Fix the VAT rate", "vat fix")).toBeGreaterThan(0);
  expect(matches("Board", "bo")).toBeGreaterThan(matches("Dashboard", "bo"));
});
