// Names digests in index.html, compresses what was built, once, so that the server never has to, and holds the first load
// to its budget.
import { createHash } from "node:crypto";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import path from "node:path";

const DIST = new URL("dist/", import.meta.url).pathname;
const BUDGET = 220 * 1000;
// Of each typeface: they are drawn with the system's until they arrive, so they are not of the first load.
const FONT_BUDGET = 60 * 1000;

// A browser runs what index.html names only as it was built, whatever a cache holds under that name.
const page = path.join(DIST, "index.html");
const named = /<(?:script|link)\b[^>]*?\b(?:src|href)="\/ui\/([^"]+\.(?:js|css))"/g;
const plain = readFileSync(page, "utf8")
  .replaceAll(/ integrity="[^"]*"/g, "")
  .replace(/<script type="importmap">.*?<\/script>\n? */s, "");
const digest = (name) =>
  `sha384-${createHash("sha384")
    .update(readFileSync(path.join(DIST, name)))
    .digest("base64")}`;
// Scripts that a page loads later are not named in the document; the map names the digest of each.
const scripts = readdirSync(path.join(DIST, "assets"))
  .filter((name) => name.endsWith(".js"))
  .sort();
const integrity = Object.fromEntries(scripts.map((name) => [`/ui/assets/${name}`, digest(`assets/${name}`)]));
// Before any other script: a map that comes after a module has no effect.
const map = `<script type="importmap">${JSON.stringify({ integrity })}</script>\n    `;
const guarded = plain
  .replaceAll(named, (tag, name) => `${tag} integrity="${digest(name)}"`)
  .replace("<script", () => `${map}<script`);
const bare = [...guarded.matchAll(/<(?:script|link)\b[^>]*\.(?:js|css)"[^>]*>/g)].filter(
  ([tag]) => !tag.includes("integrity="),
);
if (bare.length > 0) {
  console.error(`index.html names files without a digest: ${bare.join(" ")}`);
  process.exit(1);
}
writeFileSync(page, guarded);

const files = readdirSync(DIST, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile() && /\.(js|css|html|svg)$/.test(entry.name))
  .map((entry) => path.join(entry.parentPath ?? entry.path, entry.name));

const gzipped = new Map();
for (const file of files) {
  const text = readFileSync(file);
  const gzip = gzipSync(text, { level: 9 });
  gzipped.set(path.relative(DIST, file), gzip.length);
  writeFileSync(`${file}.gz`, gzip);
  const options = { params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: text.length } };
  writeFileSync(`${file}.br`, brotliCompressSync(text, options));
}

// What index.html names is what every visitor loads; the rest comes when a page wants it.
const index = readFileSync(path.join(DIST, "index.html"), "utf8");
const first = [...index.matchAll(/(?:src|href)="\/ui\/([^"]+\.js)"/g)].map((match) => match[1]);
const size = first.reduce((sum, name) => sum + (gzipped.get(name) ?? 0), 0);
console.log(`first load: ${(size / 1000).toFixed(1)} kB of script (gzip), of ${BUDGET / 1000} kB at most`);
if (size === 0 || size > BUDGET) {
  console.error("the first load is over its budget: load pages lazily, or drop a dependency");
  process.exit(1);
}
const fonts = readdirSync(path.join(DIST, "assets")).filter((name) => name.endsWith(".woff2"));
const heavy = fonts.filter((name) => readFileSync(path.join(DIST, "assets", name)).length > FONT_BUDGET);
if (fonts.length === 0 || heavy.length > 0 || !/rel="preload"[^>]*\.woff2"/.test(index)) {
  console.error(`typefaces: ${fonts.length} built, too large: ${heavy.join(", ") || "none"}; one must be preloaded`);
  process.exit(1);
}
