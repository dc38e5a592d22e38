// Colours programs apart from the page, so that no file can hold it up.
import { parserOf } from "./modes";
import { tokensOf, type LineTokens } from "./tokens";

export interface Job {
  id: number;
  language: string;
  groups: string[][];
}
export interface Done {
  id: number;
  tokens: LineTokens[][];
}

/** What one file may take. */
const MOST_MS = 600;

addEventListener("message", ({ data }: MessageEvent<Job>) => {
  const answer = (tokens: LineTokens[][]) => postMessage({ id: data.id, tokens } satisfies Done);
  parserOf(data.language)
    .then((parser) => answer(parser === undefined ? [] : tokensOf(parser, data.groups, MOST_MS)))
    .catch(() => answer([]));
});
