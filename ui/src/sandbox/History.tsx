import { useEffect, useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { api, take } from "../api/client";
import { onEvent, type Event } from "../api/live";
import { StateBadge } from "../ui/Badge";
import { CopyAs, curl } from "../ui/CopyAs";
import { Empty, Loaded } from "../ui/feedback";
import { moment, plainText } from "../ui/format";
import { Card, Cell, Table } from "../ui/layout";
import { reasonText } from "./naming";

const MOST = 500;
const MOST_PAGES = 50;

interface Stored {
  events: Event[];
  /** There are older ones that are not shown. */
  cut: boolean;
  /** There are more between these and what comes now. */
  unread: boolean;
}

/** The newest events of a sandbox. The server's pages go from the oldest on, so they are walked to the end. */
async function eventsOf(subject: string): Promise<Stored> {
  let events: Event[] = [];
  let cut = false;
  let cursor: string | undefined;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const answer = await take(api.GET("/api/v1/events", { params: { query: { subject, limit: 200, cursor } } }));
    cut ||= events.length + answer.items.length > MOST;
    events = [...events, ...answer.items].slice(-MOST);
    cursor = answer.next ?? undefined;
    if (cursor === undefined) break;
  }
  return { events, cut, unread: cursor !== undefined };
}

export function History() {
  const { id } = useParams({ from: "/shell/sandboxes/$id" });
  const history = useQuery({
    queryKey: ["history", id],
    queryFn: () => take(api.GET("/api/v1/sandboxes/{id}/history", { params: { path: { id } } })),
  });
  // What was read at an earlier visit says nothing of what came between: it is read anew, while events are listened to.
  const events = useQuery({
    queryKey: ["events-of", id],
    queryFn: () => eventsOf(id),
    staleTime: 0,
    gcTime: 0,
    refetchOnMount: "always",
  });
  const [since, setSince] = useState<Event[]>([]);
  const last = events.data?.events.at(-1)?.sequence ?? 0;
  useEffect(
    () => onEvent((event) => event.subject === id && setSince((all) => [...all, event].slice(-4 * MOST))),
    [id],
  );
  // Once they are read from the server those that came meanwhile need not be kept; and there may be many.
  const fresh = since.filter((event) => event.sequence > last);
  const { refetch, isFetching, error, data } = events;
  const many = fresh.length >= MOST && !isFetching && error === null && data?.unread === false;
  useEffect(() => {
    if (many) void refetch();
  }, [many, refetch]);
  useEffect(() => setSince((all) => all.filter((event) => event.sequence > last)), [last]);
  return (
    <div className="mx-auto grid max-w-[1400px] gap-4 p-3 sm:p-5">
      <Card title="States" actions={<CopyAs recipe={{ curl: curl("GET", `/api/v1/sandboxes/${id}/history`) }} />}>
        <Loaded query={history}>
          {({ items }) => (
            <ol className="divide-y divide-line">
              {items.map((step) => (
                <li key={`${step.at}${step.to}`} className="flex flex-wrap items-center gap-3 px-4 py-2">
                  <StateBadge state={step.to} />
                  <span className="flex-1">{reasonText(step.reason)}</span>
                  <time dateTime={step.at} className="text-dim">
                    {moment(step.at)}
                  </time>
                </li>
              ))}
            </ol>
          )}
        </Loaded>
      </Card>
      <Card title="Events" actions={<CopyAs recipe={{ curl: curl("GET", `/api/v1/events/stream?subject=${id}`) }} />}>
        <Loaded query={events}>
          {({ events: stored, cut, unread }) => {
            const all = [...stored, ...fresh].reverse();
            if (all.length === 0) return <Empty title="No events" />;
            return (
              <>
                {unread && (
                  <p className="bg-warn-soft px-4 py-1.5 text-warn">
                    Some events between these and the newest are not shown.
                  </p>
                )}
                <Table label="Events, newest first" head={["Number", "What", "Details", "When"]}>
                  {all.map((event) => (
                    <tr key={event.sequence}>
                      <Cell className="font-mono text-dim">{event.sequence}</Cell>
                      <Cell className="font-mono whitespace-nowrap">{plainText(event.kind)}</Cell>
                      <Cell className="max-w-xl min-w-64 font-mono text-xs break-all text-dim">
                        {plainText(JSON.stringify(event.payload)).slice(0, 400)}
                      </Cell>
                      <Cell className="whitespace-nowrap text-dim">{moment(event.at)}</Cell>
                    </tr>
                  ))}
                </Table>
                {cut && (
                  <p className="border-t border-line px-4 py-2 text-dim">
                    The newest {MOST} are shown; the API has those before.
                  </p>
                )}
              </>
            );
          }}
        </Loaded>
      </Card>
    </div>
  );
}
