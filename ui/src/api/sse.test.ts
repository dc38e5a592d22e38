import { expect, test } from "vitest";
import { SseParser } from "./sse";

test("events are read in whatever pieces they arrive", () => {
  const text = 'id: 1\nevent: line\ndata: {"a":1}\n\n: keep alive\n\nid: 2\r\ndata: one\r\ndata: two\r\n\r\n';
  const whole = new SseParser().add(text);
  expect(whole).toEqual([
    { id: "1", event: "line", data: '{"a":1}' },
    { id: "2", event: "message", data: "one\ntwo" },
  ]);
  const parser = new SseParser();
  expect([...text].flatMap((letter) => parser.add(letter))).toEqual(whole);
});

test("a comment and an unfinished event are nothing", () => {
  const parser = new SseParser();
  expect(parser.add(": ping\n\n")).toEqual([]);
  expect(parser.add("data: half")).toEqual([]);
  expect(parser.add("\n\n")).toEqual([{ id: undefined, event: "message", data: "half" }]);
});
