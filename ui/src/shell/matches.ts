/**
 * Every word that was typed is in the entry, or in its keywords. Letters strewn over it would be found in everything. What the
 * server found has the typed text as a keyword: it may have been found by a label or a branch.
 */
export function matches(value: string, search: string, keywords: string[] = []): number {
  const text = [value, ...keywords].join(" ").toLowerCase();
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.every((word) => text.includes(word))) return 0;
  return text.startsWith(words[0] ?? "") ? 1 : 0.5;
}
