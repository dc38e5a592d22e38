// Readers of languages, each loaded when it is first wanted.
import type { StreamParser } from "@codemirror/language";
import { markdown } from "./markdownMode";

type Parser = StreamParser<unknown>;
const of = <T>(loaded: Promise<T>, pick: (module: T) => unknown) => loaded.then((module) => pick(module) as Parser);
const clike = () => import("@codemirror/legacy-modes/mode/clike");
const css = () => import("@codemirror/legacy-modes/mode/css");
const script = () => import("@codemirror/legacy-modes/mode/javascript");
const xml = () => import("@codemirror/legacy-modes/mode/xml");

const PHP =
  "abstract and array as break callable case catch class clone const continue declare default do echo else elseif empty enum extends final finally fn for foreach function global if implements include include_once instanceof interface isset list match namespace new or print private protected public readonly require require_once return static switch throw trait try unset use var while xor yield";
const set = (words: string) => Object.fromEntries(words.split(" ").map((word) => [word, true]));

const LOADERS: Record<string, () => Promise<Parser>> = {
  c: () => of(clike(), (m) => m.c),
  clojure: () => of(import("@codemirror/legacy-modes/mode/clojure"), (m) => m.clojure),
  cmake: () => of(import("@codemirror/legacy-modes/mode/cmake"), (m) => m.cmake),
  cpp: () => of(clike(), (m) => m.cpp),
  csharp: () => of(clike(), (m) => m.csharp),
  css: () => of(css(), (m) => m.css),
  dart: () => of(clike(), (m) => m.dart),
  diff: () => of(import("@codemirror/legacy-modes/mode/diff"), (m) => m.diff),
  dockerfile: () => of(import("@codemirror/legacy-modes/mode/dockerfile"), (m) => m.dockerFile),
  erlang: () => of(import("@codemirror/legacy-modes/mode/erlang"), (m) => m.erlang),
  go: () => of(import("@codemirror/legacy-modes/mode/go"), (m) => m.go),
  groovy: () => of(import("@codemirror/legacy-modes/mode/groovy"), (m) => m.groovy),
  haskell: () => of(import("@codemirror/legacy-modes/mode/haskell"), (m) => m.haskell),
  html: () => of(xml(), (m) => m.html),
  java: () => of(clike(), (m) => m.java),
  javascript: () => of(script(), (m) => m.javascript),
  json: () => of(script(), (m) => m.json),
  julia: () => of(import("@codemirror/legacy-modes/mode/julia"), (m) => m.julia),
  kotlin: () => of(clike(), (m) => m.kotlin),
  less: () => of(css(), (m) => m.less),
  lua: () => of(import("@codemirror/legacy-modes/mode/lua"), (m) => m.lua),
  markdown: () => Promise.resolve(markdown as Parser),
  nginx: () => of(import("@codemirror/legacy-modes/mode/nginx"), (m) => m.nginx),
  objectiveC: () => of(clike(), (m) => m.objectiveC),
  ocaml: () => of(import("@codemirror/legacy-modes/mode/mllike"), (m) => m.oCaml),
  perl: () => of(import("@codemirror/legacy-modes/mode/perl"), (m) => m.perl),
  php: () => of(clike(), (m) => m.clike({ name: "php", keywords: set(PHP), atoms: set("true false null") })),
  powershell: () => of(import("@codemirror/legacy-modes/mode/powershell"), (m) => m.powerShell),
  properties: () => of(import("@codemirror/legacy-modes/mode/properties"), (m) => m.properties),
  protobuf: () => of(import("@codemirror/legacy-modes/mode/protobuf"), (m) => m.protobuf),
  python: () => of(import("@codemirror/legacy-modes/mode/python"), (m) => m.python),
  r: () => of(import("@codemirror/legacy-modes/mode/r"), (m) => m.r),
  ruby: () => of(import("@codemirror/legacy-modes/mode/ruby"), (m) => m.ruby),
  rust: () => of(import("@codemirror/legacy-modes/mode/rust"), (m) => m.rust),
  scala: () => of(clike(), (m) => m.scala),
  scss: () => of(css(), (m) => m.sCSS),
  shell: () => of(import("@codemirror/legacy-modes/mode/shell"), (m) => m.shell),
  sql: () => of(import("@codemirror/legacy-modes/mode/sql"), (m) => m.pgSQL),
  swift: () => of(import("@codemirror/legacy-modes/mode/swift"), (m) => m.swift),
  tcl: () => of(import("@codemirror/legacy-modes/mode/tcl"), (m) => m.tcl),
  toml: () => of(import("@codemirror/legacy-modes/mode/toml"), (m) => m.toml),
  typescript: () => of(script(), (m) => m.typescript),
  xml: () => of(xml(), (m) => m.xml),
  yaml: () => of(import("@codemirror/legacy-modes/mode/yaml"), (m) => m.yaml),
};

/** A reader of a language, loaded when it is first wanted. */
export async function parserOf(language: string): Promise<Parser | undefined> {
  return Object.hasOwn(LOADERS, language) ? LOADERS[language]?.() : undefined;
}
