import { describe, expect, it } from "vitest";
import { fromNotebook, inheritedUntil, newCell, started, withEvent, withOutput, type Cell, type Output } from "./cells";

function told(...events: [string, Record<string, unknown>][]): Cell {
  return events.reduce((cell, [event, data]) => withEvent(cell, event, data), started(newCell("python", "1")));
}

describe("a call", () => {
  it("fills its cell while it runs", () => {
    const cell = told(
      ["start", { execution_id: "e1" }],
      ["stdout", { data: "a" }],
      ["stdout", { data: "b\n" }],
      ["stderr", { data: "bad" }],
      ["result", { text: "2", is_main_result: true }],
      ["end", { failed: false, execution_count: 7, duration_ms: 5, timed_out: false, truncated: false }],
    );
    expect(cell).toMatchObject({ execution: "e1", phase: "done", count: 7, durationMs: 5 });
    expect(cell.outputs.map((output) => output.kind)).toEqual(["stdout", "stderr", "result"]);
    expect(cell.outputs[0]).toEqual({ kind: "stdout", text: "ab\n" });
  });

  it("that raises has failed", () => {
    const cell = told(["error", { name: "E", value: "v", traceback: "t" }], ["end", { failed: true }]);
    expect(cell.phase).toBe("failed");
    expect(cell.outputs).toEqual([{ kind: "error", error: { name: "E", value: "v", traceback: "t" } }]);
  });

  it("says what was cut and why it ended", () => {
    const cell = told(["end", { failed: false, timed_out: true, truncated: true, dropped_bytes: 9 }]);
    expect(cell.phase).toBe("failed");
    expect(cell.outputs.map((output) => (output.kind === "note" ? output.text : ""))).toEqual([
      "It was interrupted: its time was over.",
      "9 bytes of output were more than a call may have, and are left out.",
    ]);
    const lost = told(["failed", { code: "conflict", message: "it was paused", hint: "resume it" }]);
    expect(lost).toMatchObject({ phase: "failed", outputs: [{ kind: "note", text: "it was paused (resume it)" }] });
  });

  it("of an older kind, or with odd data, breaks nothing", () => {
    expect(told(["unheard", {}], ["stdout", {}], ["error", {}], ["end", {}]).phase).toBe("done");
  });
});

describe("output", () => {
  it("is bounded", () => {
    let outputs: Output[] = [];
    for (let n = 0; n < 10; n += 1) outputs = withOutput(outputs, { kind: "stdout", text: "x".repeat(100_000) });
    expect(outputs).toHaveLength(1);
    expect(outputs[0]?.kind === "stdout" && outputs[0].text.length).toBeLessThan(401_000);
    for (let n = 0; n < 500; n += 1) outputs = withOutput(outputs, { kind: "result", result: { text: `${n}` } });
    expect(outputs.length).toBe(201);
    expect(outputs.at(-1)?.kind).toBe("note");
    outputs = withOutput(outputs, { kind: "error", error: { name: "E", value: "", traceback: "" } });
    expect(outputs.at(-1)?.kind).toBe("error");
  });
});

describe("a notebook", () => {
  const code = (id: string, more: Record<string, unknown> = {}) => ({
    cell_type: "code",
    source: ["x = 1\n", "x"],
    execution_count: 3,
    metadata: { coffer: { execution_id: id, language: "python", context_id: null } },
    outputs: [
      { output_type: "stream", name: "stdout", text: ["a\n", "b"] },
      {
        output_type: "execute_result",
        data: { "text/plain": ["1"], "image/png": "iVBO", "application/vnd.e2b.data+json": { a: [1] }, "x/y": 2 },
      },
    ],
    ...more,
  });

  it("is read as cells", () => {
    const [cell, raised] = fromNotebook({
      cells: [
        code("e1"),
        { cell_type: "markdown", source: "no code" },
        code("e2", {
          outputs: [{ output_type: "error", ename: "E", evalue: "v", traceback: ["1", "2"] }, { output_type: "odd" }],
        }),
      ],
    });
    expect(cell).toMatchObject({ source: "x = 1\nx", count: 3, execution: "e1", phase: "done", language: "python" });
    expect(cell?.outputs[0]).toEqual({ kind: "stdout", text: "a\nb" });
    expect(cell?.outputs[1]).toMatchObject({
      kind: "result",
      result: { text: "1", png: "iVBO", data: { a: [1] }, extra: { "x/y": 2 }, is_main_result: true },
    });
    expect(raised?.phase).toBe("failed");
    expect(raised?.outputs).toEqual([{ kind: "error", error: { name: "E", value: "v", traceback: "1\n2" } }]);
  });

  it("says of code that was cut off that it was", () => {
    const about = { coffer: { execution_id: "e1", language: "r", state: "lost" } };
    const [cell] = fromNotebook({ cells: [code("e1", { metadata: about, outputs: [] })] });
    expect(cell).toMatchObject({ language: "r", phase: "stopped", outputs: [{ kind: "note" }] });
  });

  it("that is none has no cells", () => {
    for (const odd of [null, 3, {}, { cells: 3 }, { cells: [null, "x"] }]) expect(fromNotebook(odd)).toEqual([]);
  });

  it("is inherited up to the cell of the fork", () => {
    const cells = fromNotebook({ cells: [code("e1"), code("e2"), code("e3")] });
    expect(inheritedUntil(cells, "e2").map((cell) => [cell.execution, cell.inherited])).toEqual([
      ["e1", true],
      ["e2", true],
    ]);
    expect(inheritedUntil(cells, "unknown")).toEqual([]);
  });
});
