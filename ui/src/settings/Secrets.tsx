import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Lock } from "lucide-react";
import { toast } from "sonner";
import { api, take, type Schemas } from "../api/client";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { curl } from "../ui/CopyAs";
import { TextArea, TextField } from "../ui/fields";
import { moment } from "../ui/format";
import { Cell } from "../ui/layout";
import { List, NewForm, Removal } from "./Collection";
import { SettingsFrame } from "./SettingsFrame";

type Secret = Schemas["Secret"];

export function Secrets() {
  const queries = useQueryClient();
  const query = useQuery({
    queryKey: ["secrets"],
    queryFn: () => take(api.GET("/api/v1/secrets")),
    enabled: may("admin"),
  });
  const [name, setName] = useState("");
  const [value, setValue] = useState("");
  /** As they were written; before that they are those that the secret of this name has. */
  const [written, setWritten] = useState<string>();
  const [removing, setRemoving] = useState<Secret>();
  const fresh = () => queries.invalidateQueries({ queryKey: ["secrets"] });
  const hosts = written ?? query.data?.items.find((secret) => secret.name === name)?.hosts?.join(" ") ?? "";
  const list = hosts.split(/[\s,]+/).filter(Boolean);
  const put = useMutation({
    mutationFn: () =>
      take(
        api.PUT("/api/v1/secrets/{secret}", {
          params: { path: { secret: name } },
          // Left out they stay as they are; emptied by hand they are taken away.
          body: { value, ...(written === undefined ? {} : { hosts: list.length > 0 ? list : null }) },
        }),
      ),
    onSuccess: () => {
      setName("");
      setValue("");
      setWritten(undefined);
      toast.success("Saved; the value is not shown again");
      void fresh();
    },
  });
  const renew = (secret: Secret) => {
    setName(secret.name);
    setWritten(undefined);
    setValue("");
  };
  return (
    <SettingsFrame>
      <NewForm
        title="New secret"
        recipe={{ curl: curl("PUT", `/api/v1/secrets/${name || "NAME"}`, { value: "…" }) }}
        action="Save"
        make={put}
      >
        <TextField
          label="Name"
          required
          value={name}
          onChange={(event) => setName(event.target.value)}
          placeholder="GITHUB_TOKEN"
          hint="An existing secret gets a new value and keeps its hosts."
        />
        <TextField
          label="Only for these hosts"
          value={hosts}
          onChange={(event) => setWritten(event.target.value)}
          placeholder="api.github.com"
          hint="Hosts that may receive it in headers, separated by spaces. Empty for any."
        />
        <div className="sm:col-span-2">
          <TextArea
            label="Value"
            required
            value={value}
            onChange={(event) => setValue(event.target.value)}
            autoComplete="off"
            // Hidden like a password. Not a password field: keys such as PEM files have several lines.
            className="[-webkit-text-security:disc]"
            hint="Encrypted at rest, replaced by [redacted] in logs, never shown again."
          />
        </div>
      </NewForm>
      <List
        title="Secrets"
        query={query}
        head={["Name", "Hosts", "Version", "Updated", ""]}
        empty={{ icon: <Lock aria-hidden className="size-6" />, title: "No secrets yet" }}
      >
        {(secret) => (
          <tr key={secret.name}>
            <Cell className="font-mono">{secret.name}</Cell>
            <Cell className="text-dim">{secret.hosts?.join(", ") || "any"}</Cell>
            <Cell>{secret.version}</Cell>
            <Cell className="whitespace-nowrap text-dim">{moment(secret.updated_at)}</Cell>
            <Cell>
              <div className="flex justify-end gap-2">
                <Button onClick={() => renew(secret)}>New value</Button>
                <Button tone="quiet-danger" onClick={() => setRemoving(secret)}>
                  Remove
                </Button>
              </div>
            </Cell>
          </tr>
        )}
      </List>
      <Removal
        thing={removing}
        name={(secret) => secret.name}
        onClose={() => setRemoving(undefined)}
        remove={async (secret) => {
          await take(api.DELETE("/api/v1/secrets/{secret}", { params: { path: { secret: secret.name } } }));
          await fresh();
        }}
      >
        Sandboxes and agents that use it cannot start any more.
      </Removal>
    </SettingsFrame>
  );
}
