import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { expect, it } from "vitest";
import { demoScript, freeName } from "./demo";
import { demoBundle } from "./demoShop";

it("the demo's agent prints lines of JSON and makes the test of the demo's repository pass", () => {
  const place = mkdtempSync(`${tmpdir()}/coffer-demo-`);
  const run = (...words: [string, ...string[]]) =>
    execFileSync(words[0], words.slice(1), { cwd: place, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  try {
    writeFileSync(`${place}/shop.bundle`, demoBundle());
    run("git", "clone", "-q", "-b", "main", "shop.bundle", "shop");
    const inShop = (command: string) => run("sh", "-c", `cd shop && ${command}`);
    expect(() => inShop("sh test.sh")).toThrow();
    writeFileSync(`${place}/agent.sh`, demoScript(undefined, 0));
    const printed = inShop("sh -eu ../agent.sh").trim().split("\n");
    const kinds = printed.map((line) => (JSON.parse(line) as { type: string }).type);
    expect(kinds.at(0)).toBe("system");
    expect(kinds.at(-1)).toBe("result");
    expect(inShop("sh test.sh")).toContain("ok   1000 at 20%");
    expect(readFileSync(`${place}/shop/price.sh`, "utf8")).toContain("net + tax");
  } finally {
    rmSync(place, { recursive: true, force: true });
  }
});

it("each run of the demo has a repository of its own", () => {
  expect(freeName([])).toBe("demo-shop");
  expect(freeName(["demo-shop", "demo-shop-2"])).toBe("demo-shop-3");
});
