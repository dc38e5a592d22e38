// The transcript of a task or of an entry of a competition: its end at first, earlier parts when asked for, and live while it grows.
import { useCallback, useEffect, useRef, useState } from "react";
import { ApiError, raw } from "../api/client";
import { readEvents } from "../api/sse";
import { merged, type Entry } from "./entries";

const AT_ONCE = 200;
/** What is read at first: a little, and more only if entries are small. */
const FIRST = [10, 40, 150];
const FIRST_CHARACTERS = 120_000;
const AGAIN_MS = 1500;
/** How long changes are gathered before they are drawn. */
const GATHER_MS = 80;

export interface Transcript {
  entries: Entry[];
  state: "loading" | "ready" | "missing" | "failed";
  error?: unknown;
  /** Loads the part before, if there is one. */
  earlier?: () => Promise<void>;
}

interface Page {
  items: Entry[];
}

/** `path` is that of the transcript; `live` says whether it still grows. */
export function useTranscript(path: string, live: boolean): Transcript {
  const [entries, setEntries] = useState<Entry[]>([]);
  const [state, setState] = useState<Transcript["state"]>("loading");
  const [error, setError] = useState<unknown>();
  const last = useRef(0);

  const add = useCallback((fresh: Entry[]) => {
    for (const { change } of fresh) last.current = Math.max(last.current, change);
    setEntries((all) => merged(all, fresh));
  }, []);

  useEffect(() => {
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const load = async () => {
      try {
        await begin();
        setError(undefined);
        if (live) await follow();
      } catch (failed) {
        if (stop.signal.aborted) return;
        // A server without transcripts, or one that has deleted this one.
        if (failed instanceof ApiError && failed.status === 404) return setState("missing");
        setError(failed);
        setState((old) => (old === "ready" ? old : "failed"));
      }
      if (!stop.signal.aborted && live) timer = setTimeout(() => void load(), AGAIN_MS);
    };
    const begin = async () => {
      let read = 0;
      let first: number | undefined;
      let items = 0;
      for (const count of FIRST) {
        // The next ones are about as long as those that are known.
        if (first !== undefined && (first <= 1 || read + (read / Math.max(1, items)) * count > FIRST_CHARACTERS)) break;
        const wanted =
          first === undefined
            ? `last=${count}`
            : `limit=${Math.min(count, first - 1)}&cursor=${Math.max(0, first - 1 - count)}`;
        const text = await (await raw(`${path}?${wanted}`, { signal: stop.signal })).text();
        const page = JSON.parse(text) as Page;
        read += text.length;
        items += page.items.length;
        add(page.items);
        setState("ready");
        const earliest = page.items[0]?.sequence;
        if (earliest === undefined) break;
        first = earliest;
      }
    };
    const follow = async () => {
      const stream = await raw(`${path}/stream?after=${last.current}`, {
        signal: stop.signal,
        headers: { accept: "text/event-stream" },
      });
      let waiting: Entry[] = [];
      let drawing: ReturnType<typeof setTimeout> | undefined;
      const draw = () => {
        drawing = undefined;
        add(waiting);
        waiting = [];
      };
      await readEvents(stream, ({ data }) => {
        try {
          const entry = JSON.parse(data) as Entry;
          if (typeof entry.sequence !== "number") return;
          waiting.push(entry);
          drawing ??= setTimeout(draw, GATHER_MS);
        } catch {
          // A heartbeat.
        }
      });
      clearTimeout(drawing);
      draw();
    };
    last.current = 0;
    setEntries([]);
    setState("loading");
    void load();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [path, live, add]);

  const first = entries[0]?.sequence ?? 1;
  const earlier = useCallback(async () => {
    const cursor = Math.max(0, first - AT_ONCE - 1);
    const answer = await raw(`${path}?limit=${Math.min(AT_ONCE, first - 1)}&cursor=${cursor}`);
    add(((await answer.json()) as Page).items);
  }, [path, first, add]);
  return { entries, state, error, earlier: first > 1 ? earlier : undefined };
}
