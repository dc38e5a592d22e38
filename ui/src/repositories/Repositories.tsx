import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { FolderGit2, Plus } from "lucide-react";
import { api, take } from "../api/client";
import { may } from "../api/session";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { Empty, Loaded } from "../ui/feedback";
import { moment, plainText } from "../ui/format";
import { Card, Cell, Page, Table } from "../ui/layout";
import { NewRepository } from "./NewRepository";

export function useRepositories() {
  return useQuery({
    queryKey: ["repositories"],
    queryFn: () => take(api.GET("/api/v1/repositories", { params: { query: { limit: 200 } } })),
  });
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
                <p>Agents clone from here, push to branches and open pull requests.</p>
                {may("write") && <Button onClick={() => setMaking(true)}>New repository</Button>}
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
