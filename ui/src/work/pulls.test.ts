import { expect, test } from "vitest";
import { ownPull } from "./PullLink";

test("a pull request of this server's own is known by its address", () => {
  expect(ownPull("/repositories/house/pulls/7")).toEqual({ repository: "house", number: "7" });
  expect(ownPull("http://127.0.0.1:3000/api/v1/repositories/a%20b/pulls/12")).toEqual({
    repository: "a b",
    number: "12",
  });
  for (const other of [
    "https://github.com/owner/name/pull/7",
    "/repositories/house/pulls/7/files",
    "/repositories//pulls/7",
  ]) {
    expect(ownPull(other)).toBeUndefined();
  }
});
