import { useEffect, useMemo, useReducer, useState } from "react";
import { useParams } from "@tanstack/react-router";
import { ArrowDownToLine, Download } from "lucide-react";
import { api, raw, take } from "../api/client";
import { onEvent } from "../api/live";
import { useSandbox } from "../api/sandboxes";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { CopyAs, curl } from "../ui/CopyAs";
import { Empty, ErrorBox, Loading, toastError } from "../ui/feedback";
import { SelectField, TextField } from "../ui/fields";
import { clock, moment, plainText } from "../ui/format";
import { useRows } from "../ui/rows";
import { LogReader } from "./logReader";

/** The height of a line, in pixels. */
const ROW = 20;
const FOLLOW_MS = 2000;

interface Filter {
  search?: string;
  level?: string;
  source?: string;
  from?: string;
}

/** What is loaded of a log, and goes on being while it is looked at. */
function useLog(id: string, filter: Filter) {
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  const key = JSON.stringify(filter);
  const reader = useMemo(() => {
    const query = JSON.parse(key) as Filter;
    const ask = (cursor: string | undefined, limit: number) =>
      take(api.GET("/api/v1/sandboxes/{id}/logs", { params: { path: { id }, query: { ...query, limit, cursor } } }));
    return new LogReader(ask, redraw);
  }, [id, key]);
  useEffect(() => {
    reader.start();
    return () => reader.stop();
  }, [reader]);
  return reader;
}

const LEVELS: Record<string, string> = { error: "text-bad", warn: "text-warn" };
const SOURCES: Record<string, string> = { stderr: "text-warn", process: "text-dim", sandbox: "text-info" };

export function Logs() {
  const { id } = useParams({ from: "/shell/sandboxes/$id" });
  const sandbox = useSandbox(id).data;
  const [typed, setTyped] = useState("");
  const [filter, setFilter] = useState<Filter>({});
  const [follow, setFollow] = useState(false);
  const reader = useLog(id, filter);
  const { pages, error } = reader;

  useEffect(() => {
    const timer = setTimeout(() => setFilter((old) => ({ ...old, search: typed === "" ? undefined : typed })), 300);
    return () => clearTimeout(timer);
  }, [typed]);

  const { ref, first, end, total, toEnd } = useRows(pages.count, ROW);
  const rows = Array.from({ length: end - first }, (_, at) => first + at);

  useEffect(() => {
    const lost = rows.find((row) => pages.line(row) === undefined);
    if (lost !== undefined) void reader.restore(lost);
    else if ((!pages.begun || pages.next !== undefined) && end >= pages.count - 100) void reader.loadNext();
  });
  useEffect(() => {
    if (follow && pages.count > 0) toEnd();
  }, [follow, pages.count, toEnd]);

  // The end is looked at when something happened, and now and then: output is no event.
  useEffect(() => {
    if (sandbox?.state !== "running") return;
    const look = () => !document.hidden && reader.pages.next === undefined && void reader.loadNext();
    const timer = setInterval(look, FOLLOW_MS);
    const off = onEvent((event) => event.subject === id && look());
    return () => {
      clearInterval(timer);
      off();
    };
  }, [sandbox?.state, reader, id]);

  // A long log is not walked through to its end: it is begun anew a little before it.
  const toggleFollow = () => {
    if (!follow && pages.next !== undefined) {
      const end = sandbox?.ended_at ? Date.parse(sandbox.ended_at) : Date.now();
      setFilter((old) => ({ ...old, from: new Date(end - 60_000).toISOString() }));
    }
    setFollow(!follow);
  };

  const save = async () => {
    try {
      const answer = await raw(`/api/v1/sandboxes/${id}/logs?download=true`);
      const address = URL.createObjectURL(await answer.blob());
      const link = document.createElement("a");
      link.href = address;
      link.download = `${id}.log`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(address), 60_000);
    } catch (failed) {
      toastError(failed);
    }
  };

  return (
    <div className="flex h-full min-h-0 flex-col gap-2 p-3 sm:p-5">
      <div className="flex flex-wrap items-center gap-2">
        <div className="min-w-40 flex-1 sm:max-w-xs">
          <TextField
            label="Search the log"
            hideLabel
            type="search"
            placeholder="Search"
            value={typed}
            onChange={(event) => setTyped(event.target.value)}
          />
        </div>
        <SelectField
          label="Level"
          hideLabel
          value={filter.level ?? ""}
          onChange={(event) => setFilter({ ...filter, level: event.target.value || undefined })}
        >
          <option value="">Every level</option>
          <option value="info">Info and above</option>
          <option value="warn">Warnings and errors</option>
          <option value="error">Errors</option>
        </SelectField>
        <SelectField
          label="Source"
          hideLabel
          value={filter.source ?? ""}
          onChange={(event) => setFilter({ ...filter, source: event.target.value || undefined })}
        >
          <option value="">Every source</option>
          <option value="stdout,stderr,pty">Output</option>
          <option value="stderr">stderr</option>
          <option value="process">Processes</option>
          <option value="sandbox">The sandbox itself</option>
        </SelectField>
        <Button
          aria-pressed={follow}
          className={follow ? "text-accent" : undefined}
          onClick={toggleFollow}
          icon={<ArrowDownToLine aria-hidden className="size-4" />}
        >
          Follow
        </Button>
        <Button onClick={() => void save()} icon={<Download aria-hidden className="size-4" />}>
          Download
        </Button>
        <CopyAs recipe={{ cli: `e2b sandbox logs -f ${id}`, curl: curl("GET", `/api/v1/sandboxes/${id}/logs`) }} />
        {filter.from !== undefined && (
          <Button onClick={() => setFilter({ ...filter, from: undefined })}>
            From {clock(filter.from).slice(0, 8)} on: show all
          </Button>
        )}
        <span role="status" className="text-dim">
          {pages.count === 1 ? "1 line" : `${pages.count.toLocaleString()} lines`}
          {pages.next !== undefined && " so far"}
        </span>
      </div>
      {error !== undefined && <ErrorBox error={error} retry={() => reader.retry()} />}
      {!pages.begun ? (
        error === undefined && <Loading what="Reading the log" />
      ) : pages.count === 0 ? (
        <Empty title={filter.search || filter.level || filter.source ? "No line matches" : "The log is empty"} />
      ) : (
        <div
          ref={ref}
          role="log"
          aria-label="Log"
          aria-live="off"
          data-held-lines={pages.heldLines}
          tabIndex={0}
          onWheel={(event) => event.deltaY < 0 && setFollow(false)}
          className="min-h-0 flex-1 overflow-auto rounded-lg border border-line bg-surface font-mono text-xs"
        >
          <div className="relative min-w-max" style={{ height: total }}>
            {rows.map((row) => {
              const line = pages.line(row);
              return (
                <div
                  key={row}
                  className={classes(
                    "absolute flex h-5 items-center gap-3 px-3 whitespace-pre",
                    LEVELS[line?.level ?? ""] ?? SOURCES[line?.source ?? ""],
                  )}
                  style={{ transform: `translateY(${row * ROW}px)` }}
                >
                  {line === undefined ? (
                    <span className="text-dim">…</span>
                  ) : (
                    <>
                      <time dateTime={line.at} title={moment(line.at)} className="text-dim">
                        {clock(line.at)}
                      </time>
                      <span className="w-14 text-dim">{line.source}</span>
                      <span>{plainText(line.message).slice(0, 2000)}</span>
                    </>
                  )}
                </div>
              );
            })}
          </div>
        </div>
      )}
    </div>
  );
}
