// What code shows, as the interpreter's API tells it, and the ways in which a page can show it. All of it is hostile.

export interface Result {
  text?: string;
  html?: string;
  markdown?: string;
  svg?: string;
  png?: string;
  jpeg?: string;
  pdf?: string;
  latex?: string;
  javascript?: string;
  json?: unknown;
  data?: unknown;
  chart?: unknown;
  extra?: Record<string, unknown>;
  is_main_result?: boolean;
}

export interface CodeError {
  name: string;
  value: string;
  traceback: string;
}

/** A frame of pandas: its columns in order. */
export type Frame = [string, unknown[]][];

export type View =
  | { kind: "table"; name: "Table"; frame: Frame }
  | { kind: "picture"; name: "Picture"; address: string }
  | { kind: "chart"; name: "Chart data"; frame: Frame; title: string }
  | { kind: "html"; name: "HTML"; html: string }
  | { kind: "prose"; name: "Markdown"; text: string }
  | { kind: "pdf"; name: "PDF"; base64: string }
  | { kind: "text"; name: "LaTeX" | "JSON" | "JavaScript" | "Text" | "Other"; text: string };

const BASE64 = /^[A-Za-z0-9+/\s]*={0,2}\s*$/;
/** More of a value than this is cut: a page with more of it does not scroll any more. */
export const LONGEST_TEXT = 200_000;

export function cut(text: string, most = LONGEST_TEXT): string {
  return text.length <= most ? text : `${text.slice(0, most)}\n… ${text.length - most} more characters`;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A picture as an address that shows nothing but a picture; scripts in an SVG do not run there, and load nothing. */
function picture(result: Result): string | undefined {
  for (const [kind, value] of [
    ["image/png", result.png],
    ["image/jpeg", result.jpeg],
  ] as const) {
    if (typeof value === "string" && value !== "" && BASE64.test(value)) {
      return `data:${kind};base64,${value.replace(/\s/g, "")}`;
    }
  }
  if (typeof result.svg !== "string" || result.svg === "") return undefined;
  return `data:image/svg+xml;charset=utf-8,${encodeURIComponent(result.svg.replace(/\p{Cs}/gu, "\ufffd"))}`;
}

export function frameOf(data: unknown): Frame | undefined {
  if (!isObject(data)) return undefined;
  const columns = Object.entries(data);
  const fits = columns.length > 0 && columns.every(([, values]) => Array.isArray(values));
  return fits ? (columns as Frame) : undefined;
}

/** A chart's values as a table: a row for each point, bar or slice, with what it belongs to. */
export function chartFrame(chart: unknown): Frame | undefined {
  if (!isObject(chart) || !Array.isArray(chart.elements)) return undefined;
  const rows: Record<string, unknown>[] = [];
  const parts = chart.type === "superchart" ? chart.elements.filter(isObject) : [chart];
  for (const part of parts) {
    const of = parts.length > 1 ? { chart: part.title ?? part.type } : {};
    for (const element of Array.isArray(part.elements) ? part.elements.filter(isObject) : []) {
      const { points, ...rest } = element;
      if (!Array.isArray(points)) rows.push({ ...of, ...rest });
      else {
        const [x, y] = [label(part.x_label, "x"), label(part.y_label, "y")];
        for (const point of points as unknown[])
          if (isPair(point)) rows.push({ ...of, ...rest, [x]: point[0], [y]: point[1] });
      }
    }
  }
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  return names.length === 0 ? undefined : names.map((name) => [name, rows.map((row) => row[name])]);
}

function isPair(value: unknown): value is [unknown, unknown] {
  return Array.isArray(value) && value.length === 2;
}

function label(given: unknown, usual: string): string {
  return typeof given === "string" && given !== "" ? given : usual;
}

function pretty(value: unknown): string {
  return cut(JSON.stringify(value, undefined, 2) ?? "");
}

/** The ways in which a result can be shown, the richest first. */
export function views(result: Result): View[] {
  const found: View[] = [];
  const frame = frameOf(result.data);
  if (frame !== undefined) found.push({ kind: "table", name: "Table", frame });
  const address = picture(result);
  if (address !== undefined) found.push({ kind: "picture", name: "Picture", address });
  const points = chartFrame(result.chart);
  if (points !== undefined) {
    const title = isObject(result.chart) ? label(result.chart.title, label(result.chart.type, "Chart")) : "Chart";
    found.push({ kind: "chart", name: "Chart data", frame: points, title });
  }
  if (has(result.html)) found.push({ kind: "html", name: "HTML", html: result.html });
  if (has(result.markdown)) found.push({ kind: "prose", name: "Markdown", text: cut(result.markdown) });
  if (has(result.pdf) && BASE64.test(result.pdf)) found.push({ kind: "pdf", name: "PDF", base64: result.pdf });
  if (has(result.latex)) found.push({ kind: "text", name: "LaTeX", text: cut(result.latex) });
  if (result.json !== undefined && result.json !== null) {
    found.push({ kind: "text", name: "JSON", text: pretty(result.json) });
  }
  if (has(result.javascript)) found.push({ kind: "text", name: "JavaScript", text: cut(result.javascript) });
  // Lists and objects come as JSON too; their text is what the language itself writes.
  const text: View | undefined = has(result.text) ? { kind: "text", name: "Text", text: cut(result.text) } : undefined;
  if (text !== undefined) {
    const plain = found.findIndex((view) => view.kind === "text");
    found.splice(plain === -1 ? found.length : plain, 0, text);
  }
  if (found.length === 0 && isObject(result.extra) && Object.keys(result.extra).length > 0) {
    found.push({ kind: "text", name: "Other", text: pretty(result.extra) });
  }
  return found;
}

function has(value: unknown): value is string {
  return typeof value === "string" && value !== "";
}

/** A value of a table's cell. */
export function cellText(value: unknown): string {
  if (value === null || value === undefined) return "";
  return cut(typeof value === "string" ? value : (JSON.stringify(value) ?? ""), 2000);
}

// HTML of code is shown in a frame of an origin of its own, without scripts, forms, links and anything from elsewhere.

/** What such a frame may do: nothing. */
export const FRAME_RIGHTS = "";

const FRAME_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/** The document of a frame. Its policy comes first: what stands before it would not be bound by it. */
export function frameDocument(html: string, dark: boolean): string {
  const [ink, surface, line] = dark ? ["#e8ecf1", "#14181f", "#2c343f"] : ["#151a21", "#ffffff", "#dce1e7"];
  return (
    `<!doctype html><html><head><meta http-equiv="Content-Security-Policy" content="${FRAME_POLICY}">` +
    `<style>:root{color-scheme:${dark ? "dark" : "light"}}body{margin:4px;font:13px ui-sans-serif,system-ui,sans-serif;` +
    `color:${ink};background:${surface}}table{border-collapse:collapse}td,th{padding:2px 8px;border:1px solid ${line};` +
    `text-align:right}</style></head><body>${html}</body></html>`
  );
}

/** How high a frame should be, by what is in it: nobody outside can measure it. */
export function frameHeight(html: string): number {
  const blocks = html.match(/<(?:tr|p|li|br|h[1-6]|div|pre|hr)\b/gi)?.length ?? 0;
  const headings = html.match(/<h[1-6]\b/gi)?.length ?? 0;
  const pictures = html.match(/<(?:img|svg|canvas|video)\b/gi)?.length ?? 0;
  const lines = Math.max(blocks, Math.ceil(html.replace(/<[^>]*>/g, "").length / 110));
  return Math.min(480, 32 + lines * 26 + headings * 20 + pictures * 240);
}
