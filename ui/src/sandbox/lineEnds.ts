// The editor has lines without their ends. Which end they get back must not change what nobody touched.

/**
 * What separates the lines of a text: `\r\n` or `\r` where every line ends so, else `\n`. In a text that mixes them the
 * other carriage returns stay where they are, as letters of their lines.
 */
export function lineSeparator(text: string): "\n" | "\r\n" | "\r" {
  if (!text.includes("\r")) return "\n";
  if (!text.includes("\n")) return "\r";
  return /(^|[^\r])\n|\r([^\n]|$)/.test(text) ? "\n" : "\r\n";
}
