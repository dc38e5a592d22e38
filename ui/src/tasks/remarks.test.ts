import { expect, test } from "vitest";
import { toMessage, toRemark } from "./remarks";

const kept = (body: string, about: Record<string, unknown>, run_id?: string) => ({
  number: 1,
  author: "key",
  created_at: "",
  body,
  about: about as never,
  run_id,
});

test("a line that is there is told by its number", () => {
  const message = toMessage({ path: "door.txt", line: 3, side: "right", body: "wider" }, "open");
  expect(message).toEqual({ body: "wider", file: "door.txt", line: 3 });
  expect(toRemark(kept(message.body, { file: "door.txt", line: 3 }))).toMatchObject({
    path: "door.txt",
    line: 3,
    side: "right",
    body: "wider",
  });
});

test("a line that was removed is told in words, and found again on its side", () => {
  for (const text of ["closed", "", "  # a\tb"]) {
    const message = toMessage({ path: "door.txt", line: 7, side: "left", body: "why?\n\nreally" }, text);
    expect(message.line).toBeUndefined();
    expect(message.body).toContain("line 7 of it as it was before");
    if (text !== "") expect(message.body).toContain(`> ${text}\n`);
    expect(toRemark(kept(message.body, { file: "door.txt" }))).toMatchObject({
      line: 7,
      side: "left",
      body: "why?\n\nreally",
    });
  }
});

test("what an attempt has read is about another diff, and what is about no line has no place in it", () => {
  expect(toRemark(kept("wider", { file: "door.txt", line: 3 }, "run"))).toBeUndefined();
  expect(toRemark(kept("wider", { file: "door.txt" }))).toBeUndefined();
  expect(toRemark({ number: 1, author: "key", created_at: "", body: "wider", about: null })).toBeUndefined();
});
