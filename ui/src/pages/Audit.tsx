import { useInfiniteQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { ShieldCheck } from "lucide-react";
import { api, take } from "../api/client";
import { useNameOf } from "../api/people";
import { may } from "../api/session";
import type { AuditSearch } from "../router";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Empty, Loaded } from "../ui/feedback";
import { TextField } from "../ui/fields";
import { moment, plainText } from "../ui/format";
import { Card, Cell, Page, Table } from "../ui/layout";
import { useTyped } from "../ui/typed";

export function Audit() {
  const filter = useSearch({ from: "/shell/audit" });
  const navigate = useNavigate({ from: "/audit" });
  const look = (name: keyof AuditSearch, value: string) =>
    void navigate({ search: (old) => ({ ...old, [name]: value || undefined }), replace: true });
  const [actor, setActor] = useTyped(filter.actor ?? "", (typed) => look("actor", typed));
  const [action, setAction] = useTyped(filter.action ?? "", (typed) => look("action", typed));
  const [subject, setSubject] = useTyped(filter.subject ?? "", (typed) => look("subject", typed));
  const nameOf = useNameOf();
  const query = useInfiniteQuery({
    queryKey: ["audit", filter],
    queryFn: ({ pageParam }) =>
      take(api.GET("/api/v1/audit", { params: { query: { ...filter, limit: 100, cursor: pageParam } } })),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    enabled: may("admin"),
    staleTime: 5000,
  });
  if (!may("admin")) {
    return (
      <Page title="Audit log">
        <Empty icon={<ShieldCheck aria-hidden className="size-6" />} title="The audit log is for admins">
          Sign in with a key of the role admin.
        </Empty>
      </Page>
    );
  }
  return (
    <Page title="Audit log" actions={<CopyAs recipe={{ curl: curl("GET", "/api/v1/audit") }} />}>
      <p className="text-dim">Every request that changes something or was refused, with its caller.</p>
      <div className="grid gap-2 sm:max-w-3xl sm:grid-cols-3">
        <TextField
          label="Caller"
          value={actor}
          onChange={(event) => setActor(event.target.value)}
          placeholder="key:… or agent:…"
        />
        <TextField
          label="Request"
          value={action}
          onChange={(event) => setAction(event.target.value)}
          placeholder="POST /api/v1/sandboxes"
        />
        <TextField
          label="Object"
          value={subject}
          onChange={(event) => setSubject(event.target.value)}
          placeholder="an id"
        />
      </div>
      <Card>
        <Loaded query={query}>
          {({ pages }) => {
            const lines = pages.flatMap((page) => page.items);
            if (lines.length === 0) return <Empty title="No line matches" />;
            return (
              <Table
                label="Audit log, newest first"
                head={["Time", "Caller", "Request", "Object", "Result", "Request id"]}
              >
                {lines.map((line) => (
                  <tr key={line.id}>
                    <Cell className="whitespace-nowrap text-dim">{moment(line.at)}</Cell>
                    <Cell>
                      <button
                        type="button"
                        className="text-left hover:underline"
                        title={`Show only ${plainText(line.actor)}`}
                        onClick={() => setActor(line.actor)}
                      >
                        {plainText(nameOf(line.actor))}
                      </button>
                    </Cell>
                    <Cell className="font-mono text-xs whitespace-nowrap">{plainText(line.action)}</Cell>
                    <Cell className="font-mono text-xs">{plainText(line.subject ?? "–")}</Cell>
                    <Cell>
                      <Badge tone={line.status < 400 ? "ok" : "bad"}>
                        {line.status} {line.code ?? ""}
                      </Badge>
                    </Cell>
                    <Cell className="font-mono text-xs text-dim">{line.request_id}</Cell>
                  </tr>
                ))}
              </Table>
            );
          }}
        </Loaded>
      </Card>
      {query.hasNextPage && (
        <Button className="self-center" busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
          Show older
        </Button>
      )}
    </Page>
  );
}
