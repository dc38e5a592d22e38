import { expect, test } from "vitest";
import { nameOfActor } from "./people";

test("actors have names, never ids of keys", () => {
  const known = {
    mine: "person:p1",
    agents: new Map([["a1", "claude"]]),
    names: new Map([
      ["person:p1", "Ada"],
      ["person:p2", "Grace"],
      ["key:k2", "ci"],
    ]),
  };
  const actors = ["person:p1", "person:p2", "person:p3", "key:k2", "key:k3", "agent:a1", "agent:a2", "ada", null];
  expect(actors.map((one) => nameOfActor(one, known))).toEqual([
    "You",
    "Grace",
    "a colleague",
    "ci",
    "a colleague",
    "claude",
    "an agent",
    "ada",
    "Cofferdam",
  ]);
});

test("older rows by a key from a sign-in link have the name of the key that created the link", () => {
  const names = new Map([
    ["key:k1", "Ada"],
    ["key:k2", "web UI of key k1"],
    ["key:k3", "web UI of key k2"],
    ["key:k4", "web UI of key gone"],
    ["key:k5", "web UI of key k5"],
    ["key:k6", "web UI"],
  ]);
  const actors = ["key:k2", "key:k3", "key:k4", "key:k5", "key:k6"];
  expect(actors.map((one) => nameOfActor(one, { agents: new Map(), names }))).toEqual([
    "Ada",
    "Ada",
    "a colleague",
    "a colleague",
    "a colleague",
  ]);
});

test("operators have no names in a project", () => {
  expect(nameOfActor("operator:o1", { agents: new Map(), names: new Map() })).toBe("an operator");
});
