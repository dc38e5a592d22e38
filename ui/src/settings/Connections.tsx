// Forges that repositories may live on, and whether their tokens may do what agents need.
import { useState, type FormEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Plug } from "lucide-react";
import { api, take, type Schemas } from "../api/client";
import { may } from "../api/session";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { curl } from "../ui/CopyAs";
import { Empty, ErrorBox, Loaded } from "../ui/feedback";
import { SelectField, TextField } from "../ui/fields";
import { plainText } from "../ui/format";
import { Card } from "../ui/layout";
import { NewForm, Removal } from "./Collection";
import { SettingsFrame } from "./SettingsFrame";

type Connection = Schemas["Connection"];
type NewConnection = Schemas["NewConnection"];

/** The secret that a token typed here is kept in. */
const ownSecret = (name: string) => `${name}-token`;

/** The hosts of a forge that get its token: the API's and git's. */
export function hostsOf(address: string): string[] {
  if (address === "") return ["api.github.com", "github.com"];
  try {
    const host = new URL(address).hostname;
    return host.startsWith("api.") ? [host, host.slice("api.".length)] : [host];
  } catch {
    return [];
  }
}

function Check({ connection }: { connection: Connection }) {
  const [repository, setRepository] = useState("");
  const check = useMutation({
    mutationFn: () => {
      const params = { path: { connection: connection.id }, query: { repository } };
      return take(api.GET("/api/v1/forge/connections/{connection}/permissions", { params }));
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    check.mutate();
  };
  return (
    <div className="w-full space-y-2">
      <form onSubmit={submit} className="flex flex-wrap items-end gap-2">
        <TextField
          label="Test access to"
          required
          value={repository}
          onChange={(event) => setRepository(event.target.value)}
          placeholder={connection.kind === "git" ? "team/app.git" : "owner/name"}
        />
        <Button type="submit" busy={check.isPending}>
          Check
        </Button>
      </form>
      {check.error !== null && <ErrorBox error={check.error} />}
      {check.data !== undefined &&
        (check.data.sufficient ? (
          <p>
            <Badge tone="ok">nothing is missing</Badge>
          </p>
        ) : (
          <ul className="space-y-1" aria-label="Missing permissions">
            {check.data.missing.map((one, at) => (
              <li key={at} className="flex flex-wrap items-center gap-2">
                <Badge tone="bad">missing</Badge>
                <code className="font-mono">{plainText(one.scope)}</code> to {plainText(one.needed_to)}
              </li>
            ))}
          </ul>
        ))}
    </div>
  );
}

export function Connections() {
  const queries = useQueryClient();
  const fresh = () => queries.invalidateQueries({ queryKey: ["connections"] });
  const query = useQuery({
    queryKey: ["connections"],
    queryFn: () => take(api.GET("/api/v1/forge/connections", { params: { query: { limit: 200 } } })),
    enabled: may("admin"),
  });
  const secrets = useQuery({
    queryKey: ["secrets"],
    queryFn: () => take(api.GET("/api/v1/secrets")),
    enabled: may("admin"),
  });
  const [name, setName] = useState("github");
  const [secret, setSecret] = useState("");
  const [token, setToken] = useState("");
  const [hook, setHook] = useState("");
  const [address, setAddress] = useState("");
  const [removing, setRemoving] = useState<Connection>();
  const body = (): NewConnection => ({
    name,
    kind: "github",
    secret: token === "" ? secret : ownSecret(name),
    ...(hook === "" ? {} : { webhook_secret: hook }),
    ...(address === "" ? {} : { base_url: address }),
  });
  const make = useMutation({
    mutationFn: async () => {
      if (token !== "") {
        const params = { path: { secret: ownSecret(name) } };
        await take(api.PUT("/api/v1/secrets/{secret}", { params, body: { value: token, hosts: hostsOf(address) } }));
        setToken("");
        setSecret(ownSecret(name));
      }
      return take(api.POST("/api/v1/forge/connections", { body: body() }));
    },
    onSuccess: fresh,
    onSettled: () => void queries.invalidateQueries({ queryKey: ["secrets"] }),
  });
  const names = secrets.data?.items.map((one) => one.name) ?? [];
  return (
    <SettingsFrame>
      <NewForm
        title="Connect GitHub"
        recipe={{ curl: curl("POST", "/api/v1/forge/connections", body()) }}
        action="Connect"
        make={make}
      >
        <TextField label="Name" required value={name} onChange={(event) => setName(event.target.value)} />
        <TextField
          label="Address of its API"
          value={address}
          onChange={(event) => setAddress(event.target.value)}
          placeholder="GitHub's own"
          hint="For GitHub Enterprise: https://HOST/api/v3"
        />
        <TextField
          label="Token"
          type="password"
          value={token}
          onChange={(event) => setToken(event.target.value)}
          hint="Fine-grained, with write access to contents, pull requests and issues. Saved as a secret for this forge only."
        />
        <SelectField
          label="Or a secret with the token"
          required={token === ""}
          disabled={token !== ""}
          value={secret}
          onChange={(event) => setSecret(event.target.value)}
        >
          <option value="">Choose one</option>
          {names.map((one) => (
            <option key={one}>{one}</option>
          ))}
        </SelectField>
        <SelectField
          label="Webhook signing secret"
          value={hook}
          onChange={(event) => setHook(event.target.value)}
          hint="Without it, webhooks of the forge are refused."
        >
          <option value="">None</option>
          {names.map((one) => (
            <option key={one}>{one}</option>
          ))}
        </SelectField>
      </NewForm>
      <Card title="Connections">
        <Loaded query={query}>
          {({ items }) =>
            items.length === 0 ? (
              <Empty icon={<Plug aria-hidden className="size-6" />} title="No connections yet">
                Repositories on this server work without one.
              </Empty>
            ) : (
              <ul className="divide-y divide-line">
                {items.map((connection) => (
                  <li key={connection.id} className="flex flex-wrap items-center gap-3 p-4">
                    <div className="min-w-0 flex-1">
                      <p className="font-medium">{plainText(connection.name)}</p>
                      <p className="text-xs break-all text-dim">
                        {plainText(connection.base_url)} · secret {plainText(connection.secret)}
                        {connection.kind === "git"
                          ? ` · user ${plainText(connection.user ?? "")}`
                          : ` · webhooks at ${plainText(connection.webhook_path)}`}
                      </p>
                    </div>
                    <Button tone="quiet-danger" onClick={() => setRemoving(connection)}>
                      Remove
                    </Button>
                    <Check connection={connection} />
                  </li>
                ))}
              </ul>
            )
          }
        </Loaded>
      </Card>
      <Removal
        thing={removing}
        name={(connection) => plainText(connection.name)}
        onClose={() => setRemoving(undefined)}
        remove={async ({ id }) => {
          await take(api.DELETE("/api/v1/forge/connections/{connection}", { params: { path: { connection: id } } }));
          await fresh();
        }}
      >
        Repositories that use it cannot be reached any more.
      </Removal>
    </SettingsFrame>
  );
}
