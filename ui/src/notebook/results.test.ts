import { describe, expect, it } from "vitest";
import { cellText, chartFrame, cut, frameDocument, frameHeight, FRAME_RIGHTS, views } from "./results";

const kinds = (result: Parameters<typeof views>[0]) => views(result).map((view) => view.name);

describe("views", () => {
  it("come richest first, and a text that is more than JSON before it", () => {
    expect(kinds({ text: "  a\n0 1", html: "<table>", data: { a: [1] } })).toEqual(["Table", "HTML", "Text"]);
    expect(kinds({ text: "{'a': 1}", json: { a: 1 } })).toEqual(["Text", "JSON"]);
    expect(
      kinds({ png: "iVBO", text: "<Figure>", chart: { type: "bar", elements: [{ label: "a", value: 1 }] } }),
    ).toEqual(["Picture", "Chart data", "Text"]);
    expect(kinds({})).toEqual([]);
    expect(kinds({ extra: { "application/x-own": 1 } })).toEqual(["Other"]);
  });

  it("have no picture that is more than a picture", () => {
    expect(kinds({ png: 'x"><script>alert(1)</script>' })).toEqual([]);
    const [svg] = views({ svg: "<svg onload='alert(1)'>\ud800</svg>" });
    expect(svg).toMatchObject({ kind: "picture" });
    expect(svg?.kind === "picture" && svg.address).toMatch(/^data:image\/svg\+xml;charset=utf-8,%3Csvg/);
  });

  it("show JavaScript and never run it", () => {
    expect(views({ javascript: "alert(1)" })).toEqual([{ kind: "text", name: "JavaScript", text: "alert(1)" }]);
  });

  it("take no table from data of another shape", () => {
    for (const data of [null, 3, [1], {}, { a: 1 }, { a: [1], b: "x" }])
      expect(kinds({ data, text: "t" })).toEqual(["Text"]);
  });
});

describe("a chart's data", () => {
  it("is a row for each point, by the labels of its axes", () => {
    const chart = {
      type: "line",
      x_label: "time",
      y_label: "",
      elements: [{ label: "a", points: [[1, 2], [3, 4], "no"] }],
    };
    expect(chartFrame(chart)).toEqual([
      ["label", ["a", "a"]],
      ["time", [1, 3]],
      ["y", [2, 4]],
    ]);
  });

  it("names the chart where there are several", () => {
    const part = (title: string, value: number) => ({ type: "bar", title, elements: [{ label: "x", value }] });
    expect(chartFrame({ type: "superchart", elements: [part("A", 1), part("B", 2)] })?.[0]).toEqual([
      "chart",
      ["A", "B"],
    ]);
  });

  it("is nothing where there is none", () => {
    for (const chart of [undefined, {}, { elements: 3 }, { elements: [] }, { elements: ["x"] }])
      expect(chartFrame(chart)).toBeUndefined();
  });
});

describe("a frame", () => {
  it("has no right, and a policy before anything of the code", () => {
    expect(FRAME_RIGHTS).toBe("");
    const page = frameDocument("<b>x</b><script>1</script>", false);
    expect(page.indexOf("Content-Security-Policy")).toBeLessThan(page.indexOf("<b>x</b>"));
    expect(page).toContain("default-src 'none'");
  });

  it("is as high as its lines, within bounds", () => {
    expect(frameHeight("<b>x</b>")).toBeLessThan(80);
    expect(frameHeight("<tr>".repeat(500))).toBe(480);
    expect(frameHeight("x".repeat(100_000))).toBe(480);
  });
});

describe("text", () => {
  it("is cut where it is too long, and says so", () => {
    expect(cut("abc", 3)).toBe("abc");
    expect(cut("abcd", 3)).toBe("abc\n… 1 more characters");
  });

  it("of a cell has no word for nothing", () => {
    expect([null, undefined, 0, "", { a: 1 }, true].map(cellText)).toEqual(["", "", "0", "", '{"a":1}', "true"]);
  });
});
