// What the editor knows of Dockerfiles: colours, and what a file must have before it is sent.
import { StreamLanguage } from "@codemirror/language";

const INSTRUCTION =
  /^\s*(FROM|RUN|COPY|ADD|WORKDIR|USER|ENV|ARG|ENTRYPOINT|CMD|LABEL|EXPOSE|SHELL|VOLUME|STOPSIGNAL|HEALTHCHECK|MAINTAINER|ONBUILD)(?=\s|$)/i;

export const dockerfile = StreamLanguage.define<{ continued: boolean }>({
  name: "dockerfile",
  startState: () => ({ continued: false }),
  token(stream, state) {
    if (stream.sol()) {
      if (stream.match(/^\s*#/)) {
        stream.skipToEnd();
        return "comment";
      }
      const first = !state.continued;
      state.continued = /\\\s*$/.test(stream.string);
      if (first && stream.match(INSTRUCTION)) return "keyword";
    }
    if (stream.match(/^"(?:[^"\\]|\\.)*"|^'[^']*'/)) return "string";
    if (stream.match(/^\$(?:\{[^}]*\}|\w+)/)) return "variableName";
    if (stream.match(/^--[\w-]+/)) return "attributeName";
    stream.next();
    stream.eatWhile(/[^"'$\s-]/);
    return null;
  },
  languageData: { commentTokens: { line: "#" } },
});

export const EXAMPLE = `FROM debian:12
RUN apt-get update && apt-get install -y --no-install-recommends ripgrep
WORKDIR /app
`;

/** Whether the file copies something, for which it needs a context. */
export function copiesFiles(text: string): boolean {
  return text.split("\n").some((line) => {
    const found = /^\s*(COPY|ADD)\s+(.*)$/i.exec(line);
    return found !== null && !/^(?:--\S+\s+)*(?:https?:|<<)/.test(found[2] ?? "") && !/--from=/.test(found[2] ?? "");
  });
}

/** The line that a refusal names, such as "line 3 of the Dockerfile: …". */
export function refusedLine(message: string): number | undefined {
  const found = /\bline (\d+)\b/i.exec(message);
  return found === null ? undefined : Number(found[1]);
}

/** What is wrong with a template's name; undefined if nothing is. The server decides. */
export function templateNameProblem(name: string): string | undefined {
  if (name === "") return undefined;
  return /^[a-z0-9][a-z0-9_-]*$/.test(name) ? undefined : "Use lower-case letters, digits, dashes and underscores.";
}
