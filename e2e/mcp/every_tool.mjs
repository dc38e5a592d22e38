// The official client for JavaScript lists all tools and calls each, over both transports.
import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const { COFFER_BIN, COFFER_URL, COFFER_API_KEY, PATH } = process.env;

const transports = {
  stdio: () =>
    new StdioClientTransport({ command: COFFER_BIN, args: ["mcp"], env: { PATH, COFFER_URL, COFFER_API_KEY } }),
  http: () =>
    new StreamableHTTPClientTransport(new URL(`${COFFER_URL}/mcp`), {
      requestInit: { headers: { "X-API-KEY": COFFER_API_KEY } },
    }),
};

for (const [name, transport] of Object.entries(transports)) {
  const client = new Client({ name: "suite", version: "0" });
  await client.connect(transport());
  const { tools } = await client.listTools();
  assert.equal(tools.length, 22);
  const call = async (tool, args) => {
    const result = await client.callTool({ name: tool, arguments: args });
    assert.ok(!result.isError, `${tool}: ${result.content[0].text}`);
    return result.structuredContent;
  };
  const called = new Set();
  const { sandbox_id } = await call("create_sandbox", {});
  called.add("create_sandbox");
  const good = {
    list_sandboxes: {},
    run_command: { sandbox_id, command: "echo hello" },
    start_process: { sandbox_id, command: "sleep 100" },
    write_file: { sandbox_id, path: "~/x", content: "needle" },
    read_file: { sandbox_id, path: "~/x" },
    list_files: { sandbox_id },
    search_files: { sandbox_id, pattern: "needle" },
    snapshot_sandbox: { sandbox_id },
    list_tasks: {},
    create_task: { title: "from JavaScript" },
  };
  const results = {};
  for (const [tool, args] of Object.entries(good)) {
    results[tool] = await call(tool, args);
    called.add(tool);
  }
  assert.equal(results.run_command.stdout, "hello\n");
  await call("read_process", { execution_id: results.start_process.execution_id });
  await call("get_task", { task_id: results.create_task.task_id });
  const { forks } = await call("fork_sandbox", { sandbox_id, timeout_s: 300 });
  for (const one of ["read_process", "get_task", "fork_sandbox"]) called.add(one);
  // Each of these has an answer for people even where there is nothing to work on.
  const bad = {
    run_code: { sandbox_id, code: "1 + 1" },
    git_clone: { sandbox_id, repository: "no-such" },
    git_diff: { sandbox_id },
    git_commit: { sandbox_id, message: "fix: nothing" },
    open_pull_request: { sandbox_id, title: "nothing" },
    compare_forks: { sandbox_ids: [sandbox_id] },
    start_task: { task_id: results.create_task.task_id },
  };
  for (const [tool, args] of Object.entries(bad)) {
    const result = await client.callTool({ name: tool, arguments: args });
    assert.ok(result.isError && result.content[0].text.includes(": "), tool);
    called.add(tool);
  }
  for (const { sandbox_id: fork } of forks) await call("destroy_sandbox", { sandbox_id: fork });
  await call("destroy_sandbox", { sandbox_id });
  called.add("destroy_sandbox");
  assert.deepEqual([...called].sort(), tools.map((tool) => tool.name).sort());
  await client.close();
  console.log(name, "ok");
}
