import { expect, test } from "vitest";
import { nameOfActor } from "./people";

test("actors have names, never ids of keys", () => {
  const known = { mine: "k1", agents: new Map([["a1", "claude"]]), keys: new Map([["k2", "ci"]]) };
  const names = ["key:k1", "key:k2", "key:k3", "agent:a1", "agent:a2", "ada", null].map((one) =>
    nameOfActor(one, known),
  );
  expect(names).toEqual(["You", "ci", "a colleague", "claude", "an agent", "ada", "Cofferdam"]);
});

test("a key from a sign-in link has the name of the key that created the link", () => {
  const keys = new Map([
    ["k1", "Ada"],
    ["k2", "web UI of key k1"],
    ["k3", "web UI of key k2"],
    ["k4", "web UI of key gone"],
    ["k5", "web UI of key k5"],
  ]);
  const names = ["key:k2", "key:k3", "key:k4", "key:k5"].map((one) => nameOfActor(one, { agents: new Map(), keys }));
  expect(names).toEqual(["Ada", "Ada", "a colleague", "a colleague"]);
});

test("operators have no names in a project", () => {
  expect(nameOfActor("operator:o1", { agents: new Map(), keys: new Map() })).toBe("an operator");
});
