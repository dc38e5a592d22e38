// Text that is not sent yet. It outlives the drawer, the page and a reload, and ends with the tab.
import { useCallback, useState } from "react";

const MOST = 100_000;
const place = (of: string) => `coffer.draft.${of}`;

function read(of: string): string {
  try {
    return sessionStorage.getItem(place(of)) ?? "";
  } catch {
    return "";
  }
}

/** The draft of what `of` names, such as a comment on a task. Empty text is forgotten. */
export function useDraft(of: string): [string, (text: string) => void] {
  const [text, setText] = useState(() => read(of));
  const set = useCallback(
    (next: string) => {
      setText(next);
      try {
        if (next === "") sessionStorage.removeItem(place(of));
        else if (next.length <= MOST) sessionStorage.setItem(place(of), next);
      } catch {
        // A browser that stores nothing keeps it for as long as the form is open.
      }
    },
    [of],
  );
  return [text, set];
}
