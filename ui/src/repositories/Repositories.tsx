import { useState, type FormEvent } from "react";
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
import { TextField } from "../ui/fields";
import { moment, plainText } from "../ui/format";
import { Card, Cell, Page, Table } from "../ui/layout";

export function useRepositories() {
  return useQuery({
    queryKey: ["repositories"],
    queryFn: () => take(api.GET("/api/v1/repositories", { params: { query: { limit: 200 } } })),
  });
}

export function NewRepository({ onClose, onMade }: { onClose: () => void; onMade?: (name: string) => void }) {
  const queries = useQueryClient();
  const [name, setName] = useState("");
  const make = useMutation({
    mutationFn: () => take(api.POST("/api/v1/repositories", { body: { name } })),
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
      description="On this server; it needs no network and no account."
    >
      <form onSubmit={submit} className="space-y-4">
        <TextField label="Name" required autoFocus value={name} onChange={(event) => setName(event.target.value)} />
        {make.error !== null && <ErrorBox error={make.error} />}
        <div className="flex justify-end gap-2">
          <CopyAs recipe={{ curl: curl("POST", "/api/v1/repositories", { name: name || "app" }) }} />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={make.isPending}>
            Create
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
