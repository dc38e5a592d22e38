// A search over the logs of many sandboxes. The server searches one log at a time, so this asks for one after the
// other, newest sandboxes first, and shows what is found meanwhile.
import { useRef, useState, type FormEvent } from "react";
import { Link } from "@tanstack/react-router";
import { Search } from "lucide-react";
import { api, take, type Schemas } from "../api/client";
import type { Sandbox } from "../api/sandboxes";
import { nameOf } from "../sandbox/naming";
import { ExecutionOutput } from "../sandbox/ExecutionOutput";
import { Executions } from "../sandbox/Processes";
import { Button } from "../ui/Button";
import { Empty, ErrorBox } from "../ui/feedback";
import { SelectField, TextField } from "../ui/fields";
import { moment, plainText } from "../ui/format";
import { Card, Page } from "../ui/layout";

type Line = Schemas["LogLine"];

const MOST_SANDBOXES = 100;
const MOST_OF_EACH = 50;
const AT_ONCE = 3;

interface Found {
  sandbox: Sandbox;
  lines: Line[];
  more: boolean;
}

export function LogSearch() {
  const [text, setText] = useState("");
  const [level, setLevel] = useState("");
  const [found, setFound] = useState<Found[]>();
  const [done, setDone] = useState({ looked: 0, of: 0 });
  const [error, setError] = useState<unknown>();
  const [open, setOpen] = useState<Schemas["Execution"]>();
  const running = useRef<AbortController>(undefined);

  const look = async () => {
    running.current?.abort();
    const controller = new AbortController();
    running.current = controller;
    const { signal } = controller;
    setFound([]);
    setError(undefined);
    try {
      const { items } = await take(api.GET("/api/v1/sandboxes", { params: { query: { limit: MOST_SANDBOXES, order: "desc" } }, signal }));
      setDone({ looked: 0, of: items.length });
      const left = [...items];
      const worker = async () => {
        for (let sandbox = left.shift(); sandbox !== undefined && !signal.aborted; sandbox = left.shift()) {
          const one = sandbox;
          const query = { search: text, limit: MOST_OF_EACH, level: level || undefined };
          const page = await take(api.GET("/api/v1/sandboxes/{id}/logs", { params: { path: { id: one.id }, query }, signal }));
          if (signal.aborted) return;
          setDone((now) => ({ ...now, looked: now.looked + 1 }));
          const more = page.next !== null && page.next !== undefined;
          if (page.items.length > 0) setFound((all) => [...(all ?? []), { sandbox: one, lines: page.items, more }]);
        }
      };
      await Promise.all(Array.from({ length: AT_ONCE }, worker));
    } catch (failed) {
      if (!signal.aborted) setError(failed);
    } finally {
      if (running.current === controller) running.current = undefined;
    }
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    void look();
  };
  const busy = found !== undefined && done.looked < done.of && error === undefined;
  return (
    <Page title="Logs">
      <form onSubmit={submit} className="flex flex-wrap items-end gap-2">
        <div className="min-w-48 flex-1 sm:max-w-md">
          <TextField label="Text in the logs of sandboxes" required maxLength={200} type="search" value={text} onChange={(event) => setText(event.target.value)} placeholder="error: could not" />
        </div>
        <SelectField label="Level" value={level} onChange={(event) => setLevel(event.target.value)}>
          <option value="">Every level</option>
          <option value="warn">Warnings and errors</option>
          <option value="error">Errors</option>
        </SelectField>
        <Button type="submit" tone="primary" busy={busy} icon={<Search aria-hidden className="size-4" />}>
          Search
        </Button>
        <span role="status" className="pb-1.5 text-dim">
          {found !== undefined && `${done.looked} of the newest ${done.of} sandboxes searched`}
        </span>
      </form>
      {error !== undefined && <ErrorBox error={error} />}
      {found?.map(({ sandbox, lines, more }) => (
        <Card
          key={sandbox.id}
          title={
            <Link to="/sandboxes/$id/logs" params={{ id: sandbox.id }} className="text-accent underline">
              {nameOf(sandbox)}
            </Link>
          }
          actions={<span className="text-dim">{lines.length}{more && "+"} lines</span>}
        >
          <ul className="max-h-72 overflow-auto p-2 font-mono text-xs" tabIndex={0} aria-label={`Lines of ${nameOf(sandbox)}`}>
            {lines.map((line, at) => (
              <li key={at} className="flex gap-3 px-2 py-0.5">
                <time dateTime={line.at} className="shrink-0 text-dim">
                  {moment(line.at)}
                </time>
                <span className="break-all">{plainText(line.message).slice(0, 1000)}</span>
              </li>
            ))}
          </ul>
        </Card>
      ))}
      {found?.length === 0 && !busy && error === undefined && <Empty title="No line has that text" />}
      {found === undefined && (
        <Card title="The newest commands of the project">
          <Executions onOpen={setOpen} />
        </Card>
      )}
      {open !== undefined && <ExecutionOutput execution={open} onClose={() => setOpen(undefined)} />}
    </Page>
  );
}
