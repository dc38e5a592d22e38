import { expect, test } from "vitest";
import { instant, localTime } from "./LogSearch";

test("a local time comes back as the moment that it was", () => {
  const moment = new Date(2026, 10, 15, 23, 30).toISOString();
  expect(localTime(moment)).toBe("2026-11-15T23:30");
  expect(instant(localTime(moment))).toBe(moment);
  expect([localTime(undefined), localTime("never"), instant(""), instant("soon")]).toEqual([
    "",
    "",
    undefined,
    undefined,
  ]);
});
