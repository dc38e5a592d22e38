import { useEffect, useState } from "react";

const QUIET_MS = 200;

/**
 * The text of a field that is kept in the address. There it arrives a moment later, and a field that waited for it would
 * lose letters: what is being typed is the field's own until the address has it.
 */
export function useTyped(kept: string, keep: (text: string) => void): [string, (text: string) => void] {
  const [typed, setTyped] = useState<string>();
  useEffect(() => {
    if (typed === undefined) return;
    if (typed === kept) return setTyped(undefined);
    const timer = setTimeout(() => keep(typed), QUIET_MS);
    return () => clearTimeout(timer);
    // Only another text is a reason to keep it again.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [typed, kept]);
  return [typed ?? kept, setTyped];
}
