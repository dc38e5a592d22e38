import { useDeferredValue, useState, type FormEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { FolderGit2, Plus } from "lucide-react";
import { api, take } from "../api/client";
import { may } from "../api/session";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Dialog } from "../ui/Dialog";
import { Empty, ErrorBox, Loaded } from "../ui/feedback";
import { SelectField, TextField } from "../ui/fields";
import { moment, plainText } from "../ui/format";
import { Card, Cell, Page, Table } from "../ui/layout";

export function useRepositories() {
  return useQuery({
    queryKey: ["repositories"],
    queryFn: () => take(api.GET("/api/v1/repositories", { params: { query: { limit: 200 } } })),
  });
}

/** The repositories that a connection can reach, found by a part of their name. */
function Remotes({
  connection,
  value,
  onChoose,
}: {
  connection: string;
  value: string;
  onChoose: (remote: string) => void;
}) {
  const [search, setSearch] = useState("");
  const wanted = useDeferredValue(search);
  const query = useQuery({
    queryKey: ["connections", connection, "repositories", wanted],
    queryFn: () => {
      const params = { path: { connection }, query: { limit: 50, ...(wanted === "" ? {} : { search: wanted }) } };
      return take(api.GET("/api/v1/forge/connections/{connection}/repositories", { params }));
    },
  });
  const items = query.data?.items ?? [];
  return (
    <>
      <TextField
        label="Search"
        value={search}
        onChange={(event) => setSearch(event.target.value)}
        placeholder="A part of its name"
      />
      <SelectField
        label="Repository"
        required
        value={value}
        onChange={(event) => onChoose(event.target.value)}
        hint={query.data?.next == null ? undefined : "There are more: search for it."}
      >
        <option value="">{query.isPending ? "Asking the forge…" : "Choose one"}</option>
        {value !== "" && !items.some((one) => one.remote === value) && <option>{plainText(value)}</option>}
        {items.map((one) => (
          <option key={one.remote} value={one.remote} disabled={!one.can_push || one.archived}>
            {plainText(one.remote)}
            {one.archived ? " (archived)" : one.can_push ? "" : " (the token may not push)"}
          </option>
        ))}
      </SelectField>
      {query.error !== null && <ErrorBox error={query.error} />}
    </>
  );
}

export function NewRepository({ onClose, onMade }: { onClose: () => void; onMade?: (name: string) => void }) {
  const queries = useQueryClient();
  const [name, setName] = useState("");
  const [connection, setConnection] = useState("");
  const [remote, setRemote] = useState("");
  const connections = useQuery({
    queryKey: ["connections"],
    queryFn: () => take(api.GET("/api/v1/forge/connections", { params: { query: { limit: 200 } } })),
  });
  const known = connections.data?.items ?? [];
  const body = connection === "" ? { name } : { name, connection_id: connection, remote };
  const make = useMutation({
    mutationFn: () => take(api.POST("/api/v1/repositories", { body })),
    onSuccess: async (made) => {
      await queries.invalidateQueries({ queryKey: ["repositories"] });
      onMade?.(made.name);
      onClose();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    event.stopPropagation();
    make.mutate();
  };
  return (
    <Dialog
      open
      onClose={onClose}
      title="New repository"
      description="On this server, without a network or an account, or one of a connected forge."
    >
      <form onSubmit={submit} className="space-y-4">
        {known.length > 0 && (
          <SelectField label="Where it is" value={connection} onChange={(event) => setConnection(event.target.value)}>
            <option value="">On this server, empty</option>
            {known.map((one) => (
              <option key={one.id} value={one.id}>
                {plainText(one.name)}
              </option>
            ))}
          </SelectField>
        )}
        {connection !== "" && (
          <Remotes
            connection={connection}
            value={remote}
            onChoose={(chosen) => {
              setRemote(chosen);
              setName(chosen.split("/").pop() ?? "");
            }}
          />
        )}
        <TextField label="Name" required autoFocus value={name} onChange={(event) => setName(event.target.value)} />
        {make.error !== null && <ErrorBox error={make.error} />}
        <div className="flex justify-end gap-2">
          <CopyAs recipe={{ curl: curl("POST", "/api/v1/repositories", { ...body, name: name || "app" }) }} />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={make.isPending} disabled={connection !== "" && remote === ""}>
            {connection === "" ? "Create" : "Add"}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

export function Repositories() {
  const query = useRepositories();
  const [making, setMaking] = useState(false);
  return (
    <Page
      title="Repositories"
      actions={
        <Button
          tone="primary"
          disabled={!may("write")}
          onClick={() => setMaking(true)}
          icon={<Plus aria-hidden className="size-4" />}
        >
          New repository
        </Button>
      }
    >
      <Card>
        <Loaded query={query}>
          {({ items }) =>
            items.length === 0 ? (
              <Empty icon={<FolderGit2 aria-hidden className="size-7" />} title="No repositories yet">
                Agents clone from here, push to branches and open pull requests.
              </Empty>
            ) : (
              <Table label="Repositories" head={["Name", "Kind", "Default branch", "Created"]}>
                {items.map((repository) => (
                  <tr key={repository.id}>
                    <Cell>
                      <Link
                        to="/repositories/$repository"
                        params={{ repository: repository.id }}
                        className="font-medium text-accent underline"
                      >
                        {plainText(repository.name)}
                      </Link>
                    </Cell>
                    <Cell>
                      <Badge>{repository.kind}</Badge>
                    </Cell>
                    <Cell className="font-mono">{plainText(repository.default_branch)}</Cell>
                    <Cell className="whitespace-nowrap text-dim">{moment(repository.created_at)}</Cell>
                  </tr>
                ))}
              </Table>
            )
          }
        </Loaded>
      </Card>
      {making && <NewRepository onClose={() => setMaking(false)} />}
    </Page>
  );
}
