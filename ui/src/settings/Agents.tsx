import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Bot, Plus } from "lucide-react";
import { useAgents } from "../api/agents";
import { api, take, type Schemas } from "../api/client";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { curl } from "../ui/CopyAs";
import { TextField } from "../ui/fields";
import { moment, plainText } from "../ui/format";
import { Cell } from "../ui/layout";
import { AgentDialog, usePresets } from "./AgentForm";
import { TestAgent } from "./AgentTest";
import { List, NewForm, Removal } from "./Collection";
import { SettingsFrame } from "./SettingsFrame";

type Agent = Schemas["Agent"];

/** An agent that a program outside of Cofferdam runs: it has a key, and no definition. */
function OwnerForm() {
  const queries = useQueryClient();
  const [name, setName] = useState("");
  const make = useMutation({
    mutationFn: () => take(api.POST("/api/v1/agents", { body: { name } })),
    onSuccess: () => {
      setName("");
      void queries.invalidateQueries({ queryKey: ["agents"] });
    },
  });
  return (
    <NewForm
      title="Agent that you run yourself"
      recipe={{ curl: curl("POST", "/api/v1/agents", { name }) }}
      action="Add"
      make={make}
    >
      <TextField
        label="Name"
        required
        value={name}
        onChange={(event) => setName(event.target.value)}
        disabled={!may("admin")}
        hint={
          <>
            It owns sandboxes and works on no tasks. Then{" "}
            <Link to="/settings/keys" className="text-accent underline">
              create a key
            </Link>{" "}
            for it.
          </>
        }
      />
    </NewForm>
  );
}

export function Agents() {
  const queries = useQueryClient();
  const query = useAgents();
  const presets = usePresets();
  const [creating, setCreating] = useState(false);
  const [removing, setRemoving] = useState<Agent>();
  const [changing, setChanging] = useState<Agent>();
  const titleOf = (preset: string) => presets.data?.find((one) => one.preset === preset)?.title ?? preset;
  return (
    <SettingsFrame admin={false}>
      <div className="flex justify-end">
        <Button
          tone="primary"
          disabled={!may("admin")}
          onClick={() => setCreating(true)}
          icon={<Plus aria-hidden className="size-4" />}
        >
          New agent
        </Button>
      </div>
      <List
        title="Agents"
        query={query}
        head={["Name", "Program", { wide: "Template" }, { wide: "Created" }, ""]}
        empty={{
          icon: <Bot aria-hidden className="size-6" />,
          title: "No agents yet",
          text: "An agent works on tasks, in sandboxes of its own. Its key reaches no others.",
        }}
      >
        {(agent) => (
          <tr key={agent.id}>
            <Cell className="font-medium">{plainText(agent.name)}</Cell>
            <Cell>
              {agent.definition
                ? [titleOf(agent.definition.preset), agent.definition.model].filter(Boolean).join(", ")
                : "run by you"}
            </Cell>
            <Cell wide className="font-mono text-xs">
              {plainText(agent.definition?.template ?? "") || "default"}
            </Cell>
            <Cell wide className="whitespace-nowrap text-dim">
              {moment(agent.created_at)}
            </Cell>
            <Cell>
              <div className="flex flex-wrap justify-end gap-2">
                {agent.definition && <TestAgent agent={agent} />}
                <Button disabled={!may("admin") || agent.sealed} onClick={() => setChanging(agent)}>
                  Edit
                </Button>
                <Button tone="ghost" disabled={!may("admin")} onClick={() => setRemoving(agent)}>
                  Remove
                </Button>
              </div>
            </Cell>
          </tr>
        )}
      </List>
      <OwnerForm />
      {creating && <AgentDialog onClose={() => setCreating(false)} />}
      {changing !== undefined && <AgentDialog agent={changing} onClose={() => setChanging(undefined)} />}
      <Removal
        thing={removing}
        name={(agent) => agent.name}
        onClose={() => setRemoving(undefined)}
        remove={async ({ id }) => {
          await take(api.DELETE("/api/v1/agents/{agent}", { params: { path: { agent: id } } }));
          await queries.invalidateQueries({ queryKey: ["agents"] });
        }}
      >
        Its keys are refused from then on.
      </Removal>
    </SettingsFrame>
  );
}
