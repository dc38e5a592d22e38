// Which language a file is in, by its name, and what it is called in Markdown.

const BY_ENDING: Record<string, string> = {
  bash: "shell",
  c: "c",
  cc: "cpp",
  clj: "clojure",
  cpp: "cpp",
  cs: "csharp",
  css: "css",
  cxx: "cpp",
  dart: "dart",
  diff: "diff",
  erl: "erlang",
  ex: "ruby",
  exs: "ruby",
  go: "go",
  gradle: "groovy",
  groovy: "groovy",
  h: "c",
  hpp: "cpp",
  hs: "haskell",
  htm: "html",
  html: "html",
  ini: "properties",
  java: "java",
  jl: "julia",
  js: "javascript",
  json: "json",
  jsonc: "json",
  jsx: "javascript",
  kt: "kotlin",
  kts: "kotlin",
  less: "less",
  lua: "lua",
  m: "objectiveC",
  markdown: "markdown",
  md: "markdown",
  mjs: "javascript",
  cjs: "javascript",
  mk: "shell",
  ml: "ocaml",
  patch: "diff",
  php: "php",
  pl: "perl",
  properties: "properties",
  proto: "protobuf",
  ps1: "powershell",
  py: "python",
  pyi: "python",
  r: "r",
  rb: "ruby",
  rs: "rust",
  scala: "scala",
  scss: "scss",
  sh: "shell",
  sql: "sql",
  svelte: "html",
  svg: "xml",
  swift: "swift",
  tcl: "tcl",
  tf: "properties",
  toml: "toml",
  ts: "typescript",
  tsx: "typescript",
  vue: "html",
  xml: "xml",
  yaml: "yaml",
  yml: "yaml",
  zsh: "shell",
};

const BY_NAME: Record<string, string> = {
  dockerfile: "dockerfile",
  containerfile: "dockerfile",
  makefile: "shell",
  "cmakelists.txt": "cmake",
  gemfile: "ruby",
  rakefile: "ruby",
  "cargo.lock": "toml",
  ".bashrc": "shell",
  ".env": "properties",
  "nginx.conf": "nginx",
};

const SAID: Record<string, string> = {
  console: "shell",
  "c++": "cpp",
  "c#": "csharp",
  docker: "dockerfile",
  golang: "go",
  javascript: "javascript",
  kotlin: "kotlin",
  make: "shell",
  objc: "objectiveC",
  python3: "python",
  ruby: "ruby",
  rust: "rust",
  shell: "shell",
  typescript: "typescript",
};

const own = (table: Record<string, string>, name: string) => (Object.hasOwn(table, name) ? table[name] : undefined);

export function languageOfPath(path: string): string | undefined {
  const name = path.toLowerCase().split("/").at(-1) ?? "";
  if (name.startsWith("dockerfile.")) return "dockerfile";
  return own(BY_NAME, name) ?? (name.includes(".") ? own(BY_ENDING, name.split(".").at(-1) ?? "") : undefined);
}

/** The language of a fence of Markdown: its name, or an ending of files. */
export function languageOfWord(word: string): string | undefined {
  const name = word.toLowerCase();
  const known = own(SAID, name) ?? own(BY_ENDING, name) ?? own(BY_NAME, name);
  return known ?? (Object.values(BY_ENDING).includes(name) ? name : undefined);
}
