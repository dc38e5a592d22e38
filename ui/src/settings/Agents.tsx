import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Bot } from "lucide-react";
import { useAgents } from "../api/agents";
import { api, take, type Schemas } from "../api/client";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { curl } from "../ui/CopyAs";
import { SelectField, TextField } from "../ui/fields";
import { moment } from "../ui/format";
import { Cell } from "../ui/layout";
import { List, NewForm, Removal } from "./Collection";
import { EditAgent } from "./EditAgent";
import { SettingsFrame } from "./SettingsFrame";
import { toWords } from "./words";

type Agent = Schemas["Agent"];

export function Agents() {
  const queries = useQueryClient();
  const query = useAgents();
  const presets = useQuery({ queryKey: ["presets"], queryFn: () => take(api.GET("/api/v1/agent-presets")) });
  const secrets = useQuery({
    queryKey: ["secrets"],
    queryFn: () => take(api.GET("/api/v1/secrets")),
    enabled: may("admin"),
  });
  const [name, setName] = useState("");
  const [preset, setPreset] = useState("");
  const [model, setModel] = useState("");
  const [command, setCommand] = useState("");
  const [variable, setVariable] = useState("");
  const [secret, setSecret] = useState("");
  const [removing, setRemoving] = useState<Agent>();
  const [changing, setChanging] = useState<Agent>();
  const fresh = () => queries.invalidateQueries({ queryKey: ["agents"] });
  const chosen = presets.data?.find((one) => one.preset === preset);
  const wanted = variable || (chosen?.usual_secret ?? "");
  const body = (): Schemas["NewAgent"] => ({
    name,
    ...(chosen === undefined
      ? {}
      : {
          definition: {
            preset: chosen.preset,
            ...(model === "" ? {} : { model }),
            ...(command.trim() === "" ? {} : { command: toWords(command) }),
            ...(secret === "" || wanted === "" ? {} : { secrets: { [wanted]: secret } }),
          },
        }),
  });
  const make = useMutation({
    mutationFn: () => take(api.POST("/api/v1/agents", { body: body() })),
    onSuccess: () => {
      setName("");
      void fresh();
    },
  });
  return (
    <SettingsFrame admin={false}>
      <NewForm
        title="New agent"
        recipe={{ curl: curl("POST", "/api/v1/agents", body()) }}
        action="Add"
        make={make}
        columns={3}
      >
        <TextField
          label="Name"
          required
          value={name}
          onChange={(event) => setName(event.target.value)}
          disabled={!may("admin")}
          hint="Give it a key of its own under Keys."
        />
        <SelectField
          label="What it runs"
          value={preset}
          onChange={(event) => setPreset(event.target.value)}
          disabled={!may("admin")}
          hint="So that it can work on tasks by itself."
        >
          <option value="">Nothing: it only owns sandboxes</option>
          {presets.data?.map((one) => (
            <option key={one.preset} value={one.preset}>
              {one.title}
            </option>
          ))}
        </SelectField>
        {chosen?.takes_model && (
          <TextField
            label="Model"
            value={model}
            onChange={(event) => setModel(event.target.value)}
            placeholder="its own choice"
          />
        )}
        {chosen !== undefined && (
          <>
            <TextField
              label="Command"
              className="font-mono"
              required={chosen.command.length === 0}
              value={command}
              onChange={(event) => setCommand(event.target.value)}
              placeholder={chosen.command.join(" ").slice(0, 60)}
              hint="A program and its words, no shell; quotes hold words together, {prompt} and {model} are filled in."
            />
            <TextField
              label="Variable for its key"
              className="font-mono"
              value={wanted}
              onChange={(event) => setVariable(event.target.value)}
              placeholder="ANTHROPIC_API_KEY"
            />
            <SelectField label="Secret with the key" value={secret} onChange={(event) => setSecret(event.target.value)}>
              <option value="">None</option>
              {secrets.data?.items.map((one) => (
                <option key={one.name}>{one.name}</option>
              ))}
            </SelectField>
          </>
        )}
      </NewForm>
      <List
        title="Agents"
        query={query}
        head={["Name", "Runs", "Id", "Made", ""]}
        empty={{
          icon: <Bot aria-hidden className="size-6" />,
          title: "No agents yet",
          text: "An agent owns sandboxes; its key touches no others.",
        }}
      >
        {(agent) => (
          <tr key={agent.id}>
            <Cell className="font-medium">{agent.name}</Cell>
            <Cell>
              {agent.definition ? [agent.definition.preset, agent.definition.model].filter(Boolean).join(", ") : "–"}
            </Cell>
            <Cell className="font-mono text-xs">{agent.id}</Cell>
            <Cell className="whitespace-nowrap text-dim">{moment(agent.created_at)}</Cell>
            <Cell>
              <div className="flex justify-end gap-2">
                <Button disabled={!may("admin") || agent.sealed} onClick={() => setChanging(agent)}>
                  Change
                </Button>
                <Button tone="danger" disabled={!may("admin")} onClick={() => setRemoving(agent)}>
                  Remove
                </Button>
              </div>
            </Cell>
          </tr>
        )}
      </List>
      {changing !== undefined && presets.data !== undefined && (
        <EditAgent
          agent={changing}
          presets={presets.data}
          secrets={secrets.data?.items.map((one) => one.name) ?? []}
          onClose={() => setChanging(undefined)}
        />
      )}
      <Removal
        thing={removing}
        name={(agent) => agent.name}
        onClose={() => setRemoving(undefined)}
        remove={async ({ id }) => {
          await take(api.DELETE("/api/v1/agents/{agent}", { params: { path: { agent: id } } }));
          await fresh();
        }}
      >
        Its keys are refused from then on.
      </Removal>
    </SettingsFrame>
  );
}
