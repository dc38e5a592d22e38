// A search over the logs of all sandboxes of the project, newest sandboxes first.
import { useState, type FormEvent } from "react";
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Search } from "lucide-react";
import { api, take, type Schemas } from "../api/client";
import { useSandboxes } from "../api/sandboxes";
import type { LogSearchQuery } from "../router";
import { nameOf } from "../sandbox/naming";
import { ExecutionOutput } from "../sandbox/ExecutionOutput";
import { Executions } from "../sandbox/Processes";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Empty, ErrorBox, Loading } from "../ui/feedback";
import { SelectField, TextField } from "../ui/fields";
import { moment, plainText } from "../ui/format";
import { Card, Page } from "../ui/layout";

type Line = Schemas["FoundLine"];

const AT_ONCE = 200;
/** Older pages make room for newer ones: a search may find any number. */
const MOST_PAGES = 20;

/** A moment as a field for local times wants it, and back. */
export function localTime(at: string | undefined): string {
  const time = new Date(at ?? Number.NaN);
  if (Number.isNaN(time.getTime())) return "";
  return new Date(time.getTime() - time.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

export function instant(local: string): string | undefined {
  const time = new Date(local);
  return local === "" || Number.isNaN(time.getTime()) ? undefined : time.toISOString();
}

/** Lines that follow each other in one log, together. */
export function bySandbox(lines: Line[]): { id: string; lines: Line[] }[] {
  const groups: { id: string; lines: Line[] }[] = [];
  for (const line of lines) {
    const last = groups.at(-1);
    if (last?.id === line.sandbox_id) last.lines.push(line);
    else groups.push({ id: line.sandbox_id, lines: [line] });
  }
  return groups;
}

function Found({ query }: { query: Omit<LogSearchQuery, "q"> & { search: string } }) {
  const { sandboxes } = useSandboxes("all");
  const names = new Map(sandboxes.map((sandbox) => [sandbox.id, nameOf(sandbox)]));
  const found = useInfiniteQuery({
    queryKey: ["log-search", query],
    queryFn: ({ pageParam }) =>
      take(api.GET("/api/v1/logs", { params: { query: { ...query, limit: AT_ONCE, cursor: pageParam } } })),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    maxPages: MOST_PAGES,
    refetchOnWindowFocus: false,
  });
  if (found.data === undefined)
    return found.error === null ? (
      <Loading what="Searching" />
    ) : (
      <ErrorBox error={found.error} retry={() => void found.refetch()} />
    );
  const lines = found.data.pages.flatMap((page) => page.items);
  return (
    <>
      <p role="status" className="text-dim">
        {lines.length === 0
          ? ""
          : `${lines.length === 1 ? "1 line" : `${lines.length.toLocaleString()} lines`}${found.hasNextPage ? " so far" : ""}`}
      </p>
      {bySandbox(lines).map(({ id, lines: of }) => (
        <Card
          key={id}
          title={
            <Link to="/sandboxes/$id/logs" params={{ id }} className="text-accent underline">
              {names.get(id) ?? id}
            </Link>
          }
          actions={<span className="text-dim">{of.length === 1 ? "1 line" : `${of.length} lines`}</span>}
        >
          <ul
            className="max-h-72 overflow-auto p-2 font-mono text-xs"
            tabIndex={0}
            aria-label={`Lines of ${names.get(id) ?? id}`}
          >
            {of.map((line, at) => (
              <li key={at} className="flex gap-3 px-2 py-0.5">
                <time dateTime={line.at} className="shrink-0 text-dim">
                  {moment(line.at)}
                </time>
                <span className="w-14 shrink-0 text-dim">{line.source}</span>
                <span className="break-all">{plainText(line.message).slice(0, 1000)}</span>
              </li>
            ))}
          </ul>
        </Card>
      ))}
      {lines.length === 0 && !found.hasNextPage && <Empty title="No lines match" />}
      {found.hasNextPage && (
        <div className="flex justify-center">
          <Button busy={found.isFetchingNextPage} onClick={() => void found.fetchNextPage()}>
            Search older logs
          </Button>
        </div>
      )}
    </>
  );
}

export function LogSearch() {
  const navigate = useNavigate();
  const { q, ...wanted } = useSearch({ from: "/shell/logs" });
  const [text, setText] = useState(q ?? "");
  const [narrowed, setNarrowed] = useState(wanted);
  const narrow = (next: LogSearchQuery) => setNarrowed((old) => ({ ...old, ...next }));
  const [open, setOpen] = useState<Schemas["Execution"]>();
  const submit = (event: FormEvent) => {
    event.preventDefault();
    void navigate({ to: "/logs", search: { q: text, ...narrowed } });
  };
  const query = q === undefined ? undefined : { search: q, ...wanted };
  return (
    <Page title="Logs">
      <form onSubmit={submit} className="flex flex-wrap items-end gap-2">
        <div className="w-full">
          <TextField
            label="Text in the logs of all sandboxes"
            required
            maxLength={200}
            type="search"
            value={text}
            onChange={(event) => setText(event.target.value)}
            placeholder="error: could not"
          />
        </div>
        <SelectField
          label="Level"
          value={narrowed.level ?? ""}
          onChange={(event) => narrow({ level: event.target.value || undefined })}
        >
          <option value="">Every level</option>
          <option value="warn">Warnings and errors</option>
          <option value="error">Errors</option>
        </SelectField>
        <SelectField
          label="Source"
          value={narrowed.source ?? ""}
          onChange={(event) => narrow({ source: event.target.value || undefined })}
        >
          <option value="">Every source</option>
          <option value="stdout,stderr,pty">Output</option>
          <option value="stderr">stderr</option>
          <option value="process">Processes</option>
          <option value="sandbox">The sandbox itself</option>
        </SelectField>
        <TextField
          label="From"
          type="datetime-local"
          value={localTime(narrowed.from)}
          onChange={(event) => narrow({ from: instant(event.target.value) })}
        />
        <TextField
          label="Until"
          type="datetime-local"
          value={localTime(narrowed.until)}
          onChange={(event) => narrow({ until: instant(event.target.value) })}
        />
        <Button type="submit" tone="primary" icon={<Search aria-hidden className="size-4" />}>
          Search
        </Button>
        <CopyAs recipe={{ curl: curl("GET", `/api/v1/logs?search=${encodeURIComponent(text || "error")}`) }} />
      </form>
      {query === undefined ? (
        <Card title="Newest commands">
          <Executions onOpen={setOpen} />
        </Card>
      ) : (
        <Found key={JSON.stringify(query)} query={query} />
      )}
      {open !== undefined && <ExecutionOutput execution={open} onClose={() => setOpen(undefined)} />}
    </Page>
  );
}
