/** Lines of `NAME=value` as an object; an empty line is nothing. */
export function parsePairs(text: string): Record<string, string> {
  const pairs: Record<string, string> = {};
  for (const [at, line] of text.split("\n").entries()) {
    if (line.trim() === "") continue;
    const sign = line.indexOf("=");
    const name = line.slice(0, Math.max(0, sign)).trim();
    if (name === "") throw new Error(`Line ${at + 1} is not NAME=value`);
    pairs[name] = line.slice(sign + 1);
  }
  return pairs;
}
