// The dialog of a repository: an empty one to push to, one from a bundle of git, or one of a connected forge.
import { useDeferredValue, useRef, useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { api, raw, take, type Schemas } from "../api/client";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { CopyAs, curl } from "../ui/CopyAs";
import { Dialog } from "../ui/Dialog";
import { ErrorBox } from "../ui/feedback";
import { SelectField, TextField } from "../ui/fields";
import { FormDialog } from "../ui/FormDialog";
import { plainText } from "../ui/format";
import { addByAddress, gitAddress, gitName } from "./gitServer";

type Repository = Schemas["Repository"];

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

type Way = "push" | "import" | "forge" | "git";

const WAYS: [Way, string, string][] = [
  ["push", "Push to it", "Starts empty; you push with git."],
  ["import", "Import a bundle", "One file with all of its history."],
  ["forge", "From GitHub", "Stays there; agents open pull requests."],
  ["git", "Another git server", "GitLab, Gitea and others; pull requests are kept here."],
];

function Ways({ value, onChange }: { value: Way; onChange: (way: Way) => void }) {
  return (
    <fieldset className="grid gap-2 sm:grid-cols-2">
      <legend className="mb-1 text-sm font-medium">Where it comes from</legend>
      {WAYS.map(([way, name, text]) => (
        <label
          key={way}
          className={classes(
            "cursor-pointer rounded-md border p-2.5 focus-within:outline-2 focus-within:outline-accent",
            way === value ? "border-accent bg-accent-soft" : "border-line hover:bg-raised",
          )}
        >
          <input
            type="radio"
            name="way"
            className="sr-only"
            checked={way === value}
            onChange={() => onChange(way)}
            value={way}
          />
          <span className="block font-medium">{name}</span>
          <span className="block text-xs text-dim">{text}</span>
        </label>
      ))}
    </fieldset>
  );
}

/** The commands that fill a new, empty repository. */
export function pushCommands(cloneUrl: string, branch: string): string {
  const remote = cloneUrl.replace("://", "://x:$COFFER_API_KEY@");
  return `git remote add coffer ${remote}\ngit push coffer HEAD:${branch}`;
}

function HowToPush({ repository, onClose }: { repository: Repository; onClose: () => void }) {
  const commands = pushCommands(repository.clone_url ?? "", repository.default_branch);
  return (
    <Dialog
      open
      onClose={onClose}
      title={`Push to ${plainText(repository.name)}`}
      description="In a clone of your project. COFFER_API_KEY is a key of this project that may write."
      wide
    >
      <pre className="overflow-x-auto rounded-md bg-raised p-3 font-mono text-xs">{commands}</pre>
      <div className="mt-4 flex flex-wrap items-center justify-end gap-2">
        {may("admin") && (
          <Link to="/settings/keys" className="mr-auto text-accent underline">
            Create a key
          </Link>
        )}
        <CopyAs recipe={{ curl: commands }} />
        <Button tone="primary" onClick={onClose}>
          Done
        </Button>
      </div>
    </Dialog>
  );
}

interface Props {
  onClose: () => void;
  onMade?: (name: string) => void;
}

export function NewRepository({ onClose, onMade }: Props) {
  const queries = useQueryClient();
  const [way, setWay] = useState<Way>("push");
  const [name, setName] = useState("");
  const [bundle, setBundle] = useState<File>();
  const [chosen, setConnection] = useState("");
  const [remote, setRemote] = useState("");
  const [empty, setEmpty] = useState<Repository>();
  const created = useRef<Repository>(undefined);
  const connections = useQuery({
    queryKey: ["connections"],
    queryFn: () => take(api.GET("/api/v1/forge/connections", { params: { query: { limit: 200 } } })),
    enabled: may("admin"),
  });
  const [address, setAddress] = useState("");
  const [user, setUser] = useState("git");
  const [token, setToken] = useState("");
  const all = connections.data?.items ?? [];
  const known = all.filter((one) => one.kind !== "git");
  const place = gitAddress(address);
  const connection = chosen || (known[0]?.id ?? "");
  const body = way === "forge" ? { name, connection_id: connection, remote } : { name };
  const make = useMutation({
    mutationFn: async () => {
      if (way === "git") {
        if (place === undefined) throw new Error("The address begins with https:// and names a repository.");
        return addByAddress(place, user, token, name, all);
      }
      // An import that failed is tried again with the repository that it was for.
      const made =
        created.current?.name === name ? created.current : await take(api.POST("/api/v1/repositories", { body }));
      if (way === "import") {
        created.current = made;
        await raw(`/api/v1/repositories/${encodeURIComponent(made.name)}/import`, {
          method: "POST",
          headers: { "Content-Type": "application/octet-stream" },
          body: bundle,
        });
      }
      return made;
    },
    onSuccess: async (made) => {
      await queries.invalidateQueries({ queryKey: ["repositories"] });
      onMade?.(made.name);
      if (way === "push") setEmpty(made);
      else onClose();
    },
  });
  if (empty !== undefined) return <HowToPush repository={empty} onClose={onClose} />;
  const unconnected = (way === "forge" && known.length === 0) || (way === "git" && !may("admin"));
  return (
    <FormDialog
      title="New repository"
      description="Agents clone it, push to branches and open pull requests."
      wide
      action={way === "forge" || way === "git" ? "Add" : way === "import" ? "Import" : "Create"}
      send={make}
      disabled={way === "forge" ? remote === "" : way === "import" && bundle === undefined}
      recipe={
        way === "git"
          ? { curl: `coffer repo add ${address || "https://git.example.com/team/app.git"} --user ${user || "git"}` }
          : { curl: curl("POST", "/api/v1/repositories", { ...body, name: name || "app" }) }
      }
      onClose={onClose}
    >
      <Ways value={way} onChange={setWay} />
      {way === "import" && (
        <div className="space-y-1">
          <label htmlFor="bundle" className="block text-sm font-medium">
            Bundle
          </label>
          <input
            id="bundle"
            type="file"
            required
            accept=".bundle,application/octet-stream"
            onChange={({ target }) => {
              const file = target.files?.[0];
              setBundle(file);
              if (name === "")
                setName(
                  (file?.name ?? "")
                    .replace(/\.[^.]*$/, "")
                    .replace(/[^\w.-]+/g, "-")
                    .slice(0, 64),
                );
            }}
            className="block w-full text-sm file:mr-3 file:rounded-md file:border file:border-line file:bg-surface file:px-3 file:py-1.5"
          />
          <p className="text-xs text-dim">
            In a clone, <code className="font-mono">git bundle create app.bundle --all</code> writes one.
          </p>
        </div>
      )}
      {unconnected && (
        <p className="rounded-md border border-line p-3">
          {way === "git" ? (
            "Only an admin's key can add a repository of a git server."
          ) : connections.isPending && may("admin") ? (
            "Looking for connections…"
          ) : may("admin") ? (
            <>
              No forge is connected yet.{" "}
              <Link to="/settings/connections" className="text-accent underline">
                Connect GitHub
              </Link>{" "}
              with a token, then add the repository here.
            </>
          ) : (
            "Only an admin's key can add a repository of a forge."
          )}
        </p>
      )}
      {way === "git" && !unconnected && (
        <>
          <TextField
            label="Address"
            required
            type="url"
            value={address}
            onChange={(event) => {
              setAddress(event.target.value);
              const found = gitAddress(event.target.value);
              if (found !== undefined) setName(gitName(found.path));
            }}
            placeholder="https://git.example.com/team/app.git"
          />
          <TextField
            label="User"
            required
            value={user}
            onChange={(event) => setUser(event.target.value)}
            hint="With a token, GitLab and Gitea take any."
          />
          <TextField
            label="Token or password"
            required
            type="password"
            value={token}
            onChange={(event) => setToken(event.target.value)}
            hint="Saved as a secret for this server only. Agents never see it."
          />
        </>
      )}
      {way === "forge" && !unconnected && (
        <>
          {known.length > 1 && (
            <SelectField label="Connection" value={connection} onChange={(event) => setConnection(event.target.value)}>
              {known.map((one) => (
                <option key={one.id} value={one.id}>
                  {plainText(one.name)}
                </option>
              ))}
            </SelectField>
          )}
          <Remotes
            connection={connection}
            value={remote}
            onChoose={(found) => {
              setRemote(found);
              setName(found.split("/").pop() ?? "");
            }}
          />
        </>
      )}
      {!unconnected && (
        <TextField label="Name" required autoFocus value={name} onChange={(event) => setName(event.target.value)} />
      )}
    </FormDialog>
  );
}
