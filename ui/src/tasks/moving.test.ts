import { expect, test } from "vitest";
import { nextColumn } from "./moving";

const rect = (left: number) => ({ left, top: 0, width: 100, height: 500, right: left + 100, bottom: 500 });

test("keys move a card one column to the left or right, and not beyond", () => {
  const columns = [rect(240), rect(0), rect(120)];
  expect(nextColumn(columns, 170, -1)?.left).toBe(0);
  expect(nextColumn(columns, 170, 1)?.left).toBe(240);
  expect(nextColumn(columns, 50, -1)).toBeUndefined();
  expect(nextColumn(columns, 110, 1)).toBeUndefined();
});
