// Which rows of a long list are seen, where all are of one height. Nothing is kept for a row, so a million cost what ten do.
import { useCallback, useEffect, useRef, useState } from "react";

export interface Window {
  first: number;
  /** One after the last. */
  end: number;
}

export function windowOf(scrollTop: number, seen: number, height: number, count: number, beyond: number): Window {
  const first = Math.max(0, Math.floor(scrollTop / height) - beyond);
  const end = Math.min(count, Math.ceil((scrollTop + seen) / height) + beyond);
  return { first: Math.min(first, count), end: Math.max(end, Math.min(first, count)) };
}

export function useRows(count: number, height: number, beyond = 30) {
  const box = useRef<HTMLDivElement>(null);
  const [at, setAt] = useState({ top: 0, seen: 800 });
  const look = useCallback(() => {
    const now = box.current;
    if (now !== null)
      setAt((old) =>
        old.top === now.scrollTop && old.seen === now.clientHeight
          ? old
          : { top: now.scrollTop, seen: now.clientHeight },
      );
  }, []);
  // The box may come and go, and changes its size with the page's.
  const [watched, setWatched] = useState<HTMLDivElement | null>(null);
  const ref = useCallback((next: HTMLDivElement | null) => {
    box.current = next;
    setWatched(next);
  }, []);
  useEffect(() => {
    if (watched === null) return;
    look();
    const sizes = new ResizeObserver(look);
    sizes.observe(watched);
    watched.addEventListener("scroll", look, { passive: true });
    return () => {
      sizes.disconnect();
      watched.removeEventListener("scroll", look);
    };
  }, [watched, look]);
  const toEnd = useCallback(() => {
    if (box.current !== null) box.current.scrollTop = box.current.scrollHeight;
  }, []);
  return { ref, ...windowOf(at.top, at.seen, height, count, beyond), total: count * height, toEnd };
}
