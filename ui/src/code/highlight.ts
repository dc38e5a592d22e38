// Asks the worker for colours, one file after the other. A worker that does not answer in time is ended, and its file stays
// plain.
import { useEffect, useState } from "react";
import type { Done, Job } from "./worker";
import type { LineTokens } from "./tokens";

/** A file that took longer, the start of the worker included, is not coloured. */
const PATIENCE_MS = 8000;
/** More is not sent at all. */
const MOST_CHARACTERS = 1_000_000;
const MOST_LINES = 20_000;
const MOST_KEPT = 300;

interface Waiting {
  language: string;
  groups: string[][];
  resolve: (tokens: LineTokens[][] | undefined) => void;
}

let worker: Worker | undefined;
let busy: { id: number; of: Waiting; timer: ReturnType<typeof setTimeout> } | undefined;
let last = 0;
const queue: Waiting[] = [];

function finish(tokens: LineTokens[][] | undefined) {
  if (busy === undefined) return;
  clearTimeout(busy.timer);
  const { of } = busy;
  busy = undefined;
  of.resolve(tokens);
  next();
}

function giveUp() {
  worker?.terminate();
  worker = undefined;
  finish(undefined);
}

function next() {
  if (busy !== undefined) return;
  const of = queue.shift();
  if (of === undefined) return;
  if (worker === undefined) {
    worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }: MessageEvent<Done>) => {
      if (data.id === busy?.id) finish(data.tokens);
    };
    worker.onerror = giveUp;
  }
  last += 1;
  busy = { id: last, of, timer: setTimeout(giveUp, PATIENCE_MS) };
  worker.postMessage({ id: last, language: of.language, groups: of.groups } satisfies Job);
}

function highlight(language: string, groups: string[][]): Promise<LineTokens[][] | undefined> {
  let characters = 0;
  let lines = 0;
  for (const group of groups) {
    lines += group.length;
    for (const line of group) characters += line.length;
  }
  if (characters > MOST_CHARACTERS || lines > MOST_LINES) return Promise.resolve(undefined);
  return new Promise((resolve) => {
    queue.push({ language, groups, resolve });
    next();
  });
}

/** By language and text: a page that is drawn again has its colours at once. */
const kept = new Map<string, LineTokens[][]>();

/** The colours of groups of lines, once they are known. `groups` must be the same object as long as its lines are. */
export function useTokens(language: string | undefined, groups: string[][] | undefined): LineTokens[][] | undefined {
  const [tokens, setTokens] = useState<{ of: string[][]; tokens: LineTokens[][] }>();
  useEffect(() => {
    if (language === undefined || groups === undefined || groups.length === 0) return;
    const key = `${language}\n${groups.map((group) => group.join("\n")).join("\n\f\n")}`;
    const known = kept.get(key);
    if (known !== undefined) return setTokens({ of: groups, tokens: known });
    let wanted = true;
    void highlight(language, groups).then((found) => {
      if (found === undefined || found.length === 0) return;
      if (kept.size >= MOST_KEPT) kept.delete(kept.keys().next().value ?? "");
      if (key.length < 50_000) kept.set(key, found);
      if (wanted) setTokens({ of: groups, tokens: found });
    });
    return () => {
      wanted = false;
    };
  }, [language, groups]);
  return tokens !== undefined && tokens.of === groups ? tokens.tokens : undefined;
}
