import { expect, test } from "vitest";
import { nameOfActor } from "./people";

test("actors have names, never ids of keys", () => {
  const known = { mine: "k1", agents: new Map([["a1", "claude"]]), keys: new Map([["k2", "ci"]]) };
  const names = ["key:k1", "key:k2", "key:k3", "agent:a1", "agent:a2", "ada", null].map((one) =>
    nameOfActor(one, known),
  );
  expect(names).toEqual(["You", "ci", "a colleague", "claude", "an agent", "ada", "Cofferdam"]);
});
