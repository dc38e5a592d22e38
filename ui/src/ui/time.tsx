import { useEffect, useState } from "react";
import { moment, span } from "./format";

// One clock for all that shows a time, so that a list of a thousand does not tick a thousand times.
const watchers = new Set<(now: number) => void>();
let timer: ReturnType<typeof setInterval> | undefined;

export function useNow(): number {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    watchers.add(setNow);
    timer ??= setInterval(() => {
      const at = Date.now();
      for (const watcher of watchers) watcher(at);
    }, 1000);
    return () => {
      watchers.delete(setNow);
      if (watchers.size === 0) {
        clearInterval(timer);
        timer = undefined;
      }
    };
  }, []);
  return now;
}

/** How long ago it was. */
export function Ago({ at }: { at: string }) {
  const now = useNow();
  return (
    <time dateTime={at} title={moment(at)}>
      {span(now - Date.parse(at))} ago
    </time>
  );
}

/** How long something has been. */
export function Since({ at }: { at: string }) {
  const now = useNow();
  return (
    <time dateTime={at} title={moment(at)}>
      {span(now - Date.parse(at))}
    </time>
  );
}

/** How long until then. */
export function Until({ at }: { at: string }) {
  const now = useNow();
  const left = Date.parse(at) - now;
  return (
    <time dateTime={at} title={moment(at)} className={left < 60_000 ? "font-medium text-warn" : undefined}>
      {left <= 0 ? "now" : `in ${span(left)}`}
    </time>
  );
}
