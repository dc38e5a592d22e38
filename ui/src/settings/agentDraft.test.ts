import { expect, test } from "vitest";
import { BLANK_AGENT, toDefinition, toDraft } from "./agentDraft";

const claude = {
  preset: "claude_code",
  title: "Claude Code",
  command: ["claude"],
  output: "claude_stream",
  takes_model: true,
  usual_secret: "ANTHROPIC_API_KEY",
} as never;

test("a definition survives the form, and values that it does not show stay", () => {
  const before = {
    preset: "custom",
    command: ["sh", "-c", "echo one\necho two", "{prompt}"],
    env: { TOKEN: null },
    secrets: { KEY: "one", OTHER: "two" },
    limits: { timeout_s: 600, cpu_count: 2, memory_mib: 1024 },
    template: "agents",
    working_directory: "web",
  } as never;
  const after = toDefinition(toDraft("a", before), undefined, before);
  expect(after).toMatchObject(before);
});

test("what is typed arrives, and the preset names the variable of its key", () => {
  const draft = { ...BLANK_AGENT, name: "a", preset: "claude_code", secret: "KEY", env: "CI=1", minutes: "30" };
  expect(toDefinition(draft, claude)).toMatchObject({
    env: { CI: "1" },
    secrets: { ANTHROPIC_API_KEY: "KEY" },
    limits: { timeout_s: 1800, cpu_count: null },
  });
  expect(() => toDefinition({ ...draft, env: "oops" }, claude)).toThrow("Line 1");
});
