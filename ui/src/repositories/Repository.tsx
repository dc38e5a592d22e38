import { useState, type FormEvent } from "react";
import { useMutation, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { GitPullRequest } from "lucide-react";
import { api, take } from "../api/client";
import { may } from "../api/session";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Dialog } from "../ui/Dialog";
import { Empty, ErrorBox, Loaded } from "../ui/feedback";
import { SelectField, TextArea, TextField } from "../ui/fields";
import { plainText } from "../ui/format";
import { Card, Cell, Page, Table } from "../ui/layout";
import { Ago } from "../ui/time";
import { PULL_TONES } from "./Merge";

function OpenPull({
  repository,
  branches,
  base,
  onClose,
}: {
  repository: string;
  branches: string[];
  base: string;
  onClose: () => void;
}) {
  const navigate = useNavigate();
  const heads = branches.filter((branch) => branch !== base);
  const [head, setHead] = useState(heads[0] ?? "");
  const [title, setTitle] = useState("");
  const [body, setBody] = useState("");
  const open = useMutation({
    mutationFn: () =>
      take(
        api.POST("/api/v1/repositories/{repository}/pulls", {
          params: { path: { repository } },
          body: { head, title, body },
        }),
      ),
    onSuccess: (pull) =>
      void navigate({
        to: "/repositories/$repository/pulls/$number",
        params: { repository, number: String(pull.number) },
      }),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    open.mutate();
  };
  return (
    <Dialog open onClose={onClose} title="Open a pull request" wide>
      <form onSubmit={submit} className="space-y-4">
        <SelectField
          label={`Into ${plainText(base)} from`}
          required
          value={head}
          onChange={(event) => setHead(event.target.value)}
        >
          {heads.map((branch) => (
            <option key={branch} value={branch}>
              {plainText(branch)}
            </option>
          ))}
        </SelectField>
        <TextField label="Title" required autoFocus value={title} onChange={(event) => setTitle(event.target.value)} />
        <TextArea
          label="Description"
          value={body}
          onChange={(event) => setBody(event.target.value)}
          className="font-sans"
        />
        {open.error !== null && <ErrorBox error={open.error} />}
        <div className="flex justify-end gap-2">
          <CopyAs recipe={{ curl: curl("POST", `/api/v1/repositories/${repository}/pulls`, { head, title }) }} />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={open.isPending} disabled={head === ""}>
            Open pull request
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

export function Repository() {
  const { repository } = useParams({ from: "/shell/repositories/$repository" });
  const path = { repository };
  const [state, setState] = useState("open");
  const [opening, setOpening] = useState(false);
  const one = useQuery({
    queryKey: ["repositories", repository],
    queryFn: () => take(api.GET("/api/v1/repositories/{repository}", { params: { path } })),
  });
  const branches = useQuery({
    queryKey: ["repositories", repository, "branches"],
    queryFn: () =>
      take(api.GET("/api/v1/repositories/{repository}/branches", { params: { path, query: { limit: 200 } } })),
  });
  const pulls = useQuery({
    queryKey: ["repositories", repository, "pulls", state],
    queryFn: () =>
      take(
        api.GET("/api/v1/repositories/{repository}/pulls", {
          params: { path, query: { limit: 100, state: state || undefined } },
        }),
      ),
  });
  const base = one.data?.default_branch ?? "main";
  return (
    <Page
      name={plainText(one.data?.name ?? "Repository")}
      title={
        <span className="flex items-center gap-2">
          <Link to="/repositories" className="text-dim hover:text-ink">
            Repositories
          </Link>
          <span aria-hidden className="text-dim">
            /
          </span>
          {plainText(one.data?.name ?? "…")}
        </span>
      }
      actions={
        <Button
          tone="primary"
          disabled={!may("write") || (branches.data?.items.length ?? 0) < 2}
          onClick={() => setOpening(true)}
          icon={<GitPullRequest aria-hidden className="size-4" />}
        >
          Open a pull request
        </Button>
      }
    >
      {one.error !== null && <ErrorBox error={one.error} />}
      {one.data?.clone_url && (
        <Card
          title="Clone"
          actions={
            <CopyAs recipe={{ curl: `git clone ${one.data.clone_url.replace("://", "://x:$COFFER_API_KEY@")}` }} />
          }
        >
          <code className="block px-4 py-3 font-mono text-xs break-all">{plainText(one.data.clone_url)}</code>
        </Card>
      )}
      <Card
        title="Pull requests"
        actions={
          <SelectField label="State" hideLabel value={state} onChange={(event) => setState(event.target.value)}>
            <option value="open">Open</option>
            <option value="merged">Merged</option>
            <option value="closed">Closed</option>
            <option value="">All</option>
          </SelectField>
        }
      >
        <Loaded query={pulls}>
          {({ items }) =>
            items.length === 0 ? (
              <Empty icon={<GitPullRequest aria-hidden className="size-6" />} title="No pull requests" />
            ) : (
              <Table label="Pull requests" head={["Number", "Title", "Branch", "State", "Changed"]}>
                {items.map((pull) => (
                  <tr key={pull.number}>
                    <Cell className="text-dim">#{pull.number}</Cell>
                    <Cell>
                      <Link
                        to="/repositories/$repository/pulls/$number"
                        params={{ repository, number: String(pull.number) }}
                        className="font-medium text-accent underline"
                      >
                        {plainText(pull.title)}
                      </Link>
                    </Cell>
                    <Cell className="font-mono text-xs">{plainText(pull.head)}</Cell>
                    <Cell>
                      <Badge tone={PULL_TONES[pull.state] ?? "dim"}>{pull.draft ? "draft" : pull.state}</Badge>
                    </Cell>
                    <Cell className="whitespace-nowrap text-dim">
                      <Ago at={pull.updated_at} />
                    </Cell>
                  </tr>
                ))}
              </Table>
            )
          }
        </Loaded>
      </Card>
      <Card title="Branches">
        <Loaded query={branches}>
          {({ items }) =>
            items.length === 0 ? (
              <Empty title="No branches yet" />
            ) : (
              <ul className="divide-y divide-line">
                {items.map((branch) => (
                  <li key={branch.name} className="flex items-center gap-3 px-4 py-2">
                    <span className="min-w-0 flex-1 truncate font-mono">{plainText(branch.name)}</span>
                    {branch.name === base && <Badge tone="info">default</Badge>}
                    {branch.protected && <Badge>protected</Badge>}
                    <span className="font-mono text-xs text-dim">{branch.commit.slice(0, 10)}</span>
                  </li>
                ))}
              </ul>
            )
          }
        </Loaded>
      </Card>
      {opening && branches.data !== undefined && (
        <OpenPull
          repository={repository}
          branches={branches.data.items.map((branch) => branch.name)}
          base={base}
          onClose={() => setOpening(false)}
        />
      )}
    </Page>
  );
}
