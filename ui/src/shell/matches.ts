/** Every word that was typed is in the entry. Letters strewn over it would be found in everything. */
export function matches(value: string, search: string): number {
  const text = value.toLowerCase();
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.every((word) => text.includes(word))) return 0;
  return text.startsWith(words[0] ?? "") ? 1 : 0.5;
}
