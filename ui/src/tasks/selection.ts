// Which tasks of the board are selected, by mouse, Shift and the keys x and Shift+x.
import { useCallback, useEffect, useMemo, useRef, useState } from "react";

/** What is selected after the one at `id` was chosen: it alone changes, or with `range` all from the last one on are added. */
export function chosen(old: Set<string>, shown: string[], last: string | undefined, id: string, range: boolean) {
  const next = new Set(old);
  const [from, to] = [shown.indexOf(last ?? ""), shown.indexOf(id)];
  if (range && from !== -1 && to !== -1) {
    for (const one of shown.slice(Math.min(from, to), Math.max(from, to) + 1)) next.add(one);
  } else if (!next.delete(id)) next.add(id);
  return next;
}

export interface Selection {
  has: (id: string) => boolean;
  choose: (id: string, range: boolean) => void;
  some: boolean;
}

/** `shown` has the ids of all that can be selected, as they are seen from first to last. */
export function useSelection(shown: string[]) {
  const [ids, setIds] = useState<Set<string>>(() => new Set());
  const last = useRef<string>(undefined);
  const order = useRef(shown);
  useEffect(() => {
    order.current = shown;
  }, [shown]);
  const choose = useCallback((id: string, range: boolean) => {
    const from = last.current;
    last.current = id;
    setIds((old) => chosen(old, order.current, from, id, range));
  }, []);
  const clear = useCallback(() => setIds(new Set()), []);
  const some = ids.size > 0;

  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if (document.querySelector("[role=dialog], [role=menu]") !== null) return;
      if (event.key === "Escape" && some) return clear();
      const target = event.target instanceof HTMLElement ? event.target : undefined;
      const id = target?.closest("[data-task]")?.getAttribute("data-task");
      if (event.key.toLowerCase() !== "x" || !id) return;
      event.preventDefault();
      choose(id, event.shiftKey);
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [choose, clear, some]);

  const selection = useMemo<Selection>(() => ({ has: (id) => ids.has(id), choose, some }), [ids, choose, some]);
  return { ids, selection, clear };
}
