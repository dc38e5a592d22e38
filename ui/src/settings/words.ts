/** A command line as the words that a program is given: separated by spaces, or held together by quotes. No shell. */
export function toWords(line: string): string[] {
  const words: string[] = [];
  const part = /'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)|([^\s'"\\]+)/gs;
  let word: string | undefined;
  let end = 0;
  for (const found of line.matchAll(part)) {
    if (word !== undefined && line.slice(end, found.index).trim() === "" && found.index > end) {
      words.push(word);
      word = undefined;
    }
    const [, single, double, escaped, plain] = found;
    word = (word ?? "") + (single ?? double?.replaceAll(/\\(["\\])/g, "$1") ?? escaped ?? plain ?? "");
    end = found.index + found[0].length;
  }
  return word === undefined ? words : [...words, word];
}

/** The line that `toWords` makes those words of. */
export function toLine(words: string[]): string {
  return words.map((word) => (/^[^\s'"\\]+$/.test(word) ? word : `"${word.replaceAll(/["\\]/g, "\\$&")}"`)).join(" ");
}
