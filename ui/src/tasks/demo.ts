// "Try the demo": a small repository, a scripted agent and a task, made by the same requests that a person would send. No model is
// called and no network is needed: the agent is a shell script that prints what Claude Code would print, and says so in its name.
import { api, raw, take, type Schemas } from "../api/client";
import { DEMO_AGENT, DEMO_LABEL, isDemoAgent } from "./demoNames";
import { demoBundle } from "./demoShop";

type Block = Record<string, unknown>;

const assistant = (...content: Block[]) => ({ type: "assistant", message: { role: "assistant", content } });
const says = (text: string) => assistant({ type: "text", text });
const uses = (id: string, name: string, input: Block) => assistant({ type: "tool_use", id, name, input });
const returned = (id: string, content: string, failed = false) => ({
  type: "user",
  message: { role: "user", content: [{ type: "tool_result", tool_use_id: id, content, is_error: failed }] },
});

const PLAN = ["Run the test", "Find the mistake", "Fix it and run the test again"];
const plan = (done: number) =>
  uses(`plan-${done}`, "TodoWrite", {
    todos: PLAN.map((content, at) => ({
      content,
      activeForm: content,
      status: at < done ? "completed" : at === done ? "in_progress" : "pending",
    })),
  });

/** A line of its output, or a command that really runs; after each it rests, so that people can follow. */
type Beat = object | { run: string };

const BEATS: Beat[] = [
  { type: "system", subtype: "init", model: "scripted-demo", session_id: "demo" },
  says("This is a scripted demo: no model is called. I will run the test first, then fix what it finds."),
  plan(0),
  uses("t1", "Bash", { command: "sh test.sh" }),
  returned("t1", "FAIL 1000 at 20%: 800, not 1200\nFAIL 999 at 19%: 810, not 1188\nok   0 at 7%", true),
  plan(1),
  uses("t2", "Read", { file_path: "price.sh" }),
  returned("t2", "tax=$((net * rate / 100))\necho $((net - tax))"),
  says("`price.sh` takes the tax off the price. It must be added."),
  plan(2),
  uses("t3", "Edit", { file_path: "price.sh", old_string: "net - tax", new_string: "net + tax" }),
  { run: "sed -i 's/net - tax/net + tax/' price.sh" },
  returned("t3", "The file price.sh has been updated."),
  uses("t4", "Bash", { command: "sh test.sh" }),
  returned("t4", "ok   1000 at 20%\nok   999 at 19%\nok   0 at 7%"),
  plan(3),
  {
    type: "result",
    subtype: "success",
    is_error: false,
    result: "The tax is added to the price now, and all three cases of the test pass.",
    total_cost_usd: 0,
    usage: { input_tokens: 0, output_tokens: 0 },
  },
];

/** The agent's shell script. */
export function demoScript(beats: Beat[] = BEATS, restS = 0.8): string {
  const quoted = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;
  return beats
    .map((beat) => ("run" in beat ? beat.run : `printf '%s\\n' ${quoted(JSON.stringify(beat))}\nsleep ${restS}`))
    .join("\n");
}

/** A name for the demo's repository that is not taken: each run has the mistake that it fixes. */
export function freeName(taken: string[]): string {
  for (let at = 1; ; at++) {
    const name = at === 1 ? "demo-shop" : `demo-shop-${at}`;
    if (!taken.includes(name)) return name;
  }
}

async function agentOf(agents: Schemas["Agent"][]): Promise<string> {
  const known = agents.find(isDemoAgent);
  if (known !== undefined) return known.id;
  const definition = {
    preset: "custom" as const,
    command: ["/bin/sh", "-euc", demoScript(), "agent", "{prompt}"],
    output: "claude_stream" as const,
    limits: { timeout_s: 120 },
  };
  return (await take(api.POST("/api/v1/agents", { body: { name: DEMO_AGENT, definition } }))).id;
}

/** Makes all of it and starts the task; returns the task's id. */
export async function startDemo(agents: Schemas["Agent"][], repositories: { name: string }[]): Promise<string> {
  const name = freeName(repositories.map((one) => one.name));
  const agent = await agentOf(agents);
  await take(api.POST("/api/v1/repositories", { body: { name } }));
  await raw(`/api/v1/repositories/${name}/import`, {
    method: "POST",
    headers: { "Content-Type": "application/octet-stream" },
    body: demoBundle(),
  });
  const task = await take(
    api.POST("/api/v1/tasks", {
      body: {
        title: "fix: add the tax to the price",
        description:
          "`price.sh` takes the tax off. Have `sh test.sh` pass.\n\nThis task is a demo: its agent is a script.",
        repository: name,
        agent_id: agent,
        check_command: "sh test.sh",
        labels: [DEMO_LABEL],
        state: "todo",
      },
    }),
  );
  await take(api.POST("/api/v1/tasks/{task}/start", { params: { path: { task: task.id } }, body: {} }));
  return task.id;
}
