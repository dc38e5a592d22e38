import { useState, type FormEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { ArrowDown, ArrowUp, Plus, Trash2 } from "lucide-react";
import { toast } from "sonner";
import { api, take, type Schemas } from "../api/client";
import { may } from "../api/session";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Empty, ErrorBox, Loaded } from "../ui/feedback";
import { SelectField, TextField } from "../ui/fields";
import { Card } from "../ui/layout";
import { SettingsFrame } from "./SettingsFrame";
import { readTagged, writeTagged, type Tagged } from "./tagged";

type Policy = Schemas["CommandPolicy"];
type Rule = Schemas["CommandRule"];

function Check({ policy }: { policy: Policy }) {
  const [command, setCommand] = useState("");
  const check = useMutation({
    mutationFn: () => take(api.POST("/api/v1/policy/check", { body: { command, policy } })),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    check.mutate();
  };
  return (
    <Card title="Test a command">
      <form onSubmit={submit} className="flex gap-2 p-4">
        <div className="min-w-0 flex-1">
          <TextField
            label="Command"
            hideLabel
            required
            className="font-mono"
            placeholder="git push origin main"
            value={command}
            onChange={(event) => setCommand(event.target.value)}
          />
        </div>
        <Button type="submit" busy={check.isPending}>
          Check
        </Button>
      </form>
      {check.error !== null && <ErrorBox error={check.error} className="mx-4 mb-4" />}
      {check.data !== undefined && (
        <p role="status" className="flex items-center gap-2 border-t border-line px-4 py-3">
          <Badge tone={check.data.allowed ? "ok" : "bad"}>{check.data.allowed ? "allowed" : "refused"}</Badge>
          {check.data.reason}
          {check.data.rule !== null && check.data.rule !== undefined && ` by rule ${check.data.rule + 1}`}
        </p>
      )}
    </Card>
  );
}

function Editor({ policy }: { policy: Tagged<Policy> }) {
  const queries = useQueryClient();
  // What was written here; as long as there is nothing, it is as the server has it.
  const [draft, setDraft] = useState<Policy>();
  const shown = draft ?? policy.value;
  const [usual, rules] = [shown.default ?? "allow", shown.rules ?? []];
  const setUsual = (next: "allow" | "deny") => setDraft({ default: next, rules });
  const setRules = (next: Rule[]) => setDraft({ default: usual, rules: next });
  const wanted: Policy = { default: usual, rules };
  const disabled = !may("admin");
  const save = useMutation({
    mutationFn: () => writeTagged<Policy>("PUT", "/api/v1/policy", wanted, policy.tag),
    onSuccess: (next) => {
      queries.setQueryData(["policy"], next);
      setDraft(undefined);
      toast.success("Saved");
    },
    // Whoever was late keeps what they wrote, and the next try knows what it writes over.
    onError: () => void queries.invalidateQueries({ queryKey: ["policy"] }),
  });
  const change = (at: number, next: Partial<Rule>) =>
    setRules(rules.map((rule, place) => (place === at ? { ...rule, ...next } : rule)));
  const move = (at: number, by: number) => {
    const next = [...rules];
    const [rule] = next.splice(at, 1);
    if (rule !== undefined) next.splice(at + by, 0, rule);
    setRules(next);
  };
  return (
    <>
      <Card title="Rules" actions={<CopyAs recipe={{ curl: curl("PUT", "/api/v1/policy", wanted) }} />}>
        <p className="px-4 pt-3 text-dim">
          The first rule whose pattern matches decides. Rules apply to commands sent through the API, not to what
          programs inside start.
        </p>
        {rules.length === 0 ? (
          <Empty title="No rules yet" />
        ) : (
          <ol className="divide-y divide-line p-2">
            {rules.map((rule, at) => (
              <li key={at} className="flex flex-wrap items-end gap-2 p-2">
                <SelectField
                  label={`Rule ${at + 1}`}
                  disabled={disabled}
                  value={rule.effect}
                  onChange={(event) => change(at, { effect: event.target.value as Rule["effect"] })}
                >
                  <option value="allow">allow</option>
                  <option value="deny">deny</option>
                </SelectField>
                <div className="min-w-40 flex-1">
                  <TextField
                    label="Pattern"
                    className="font-mono"
                    disabled={disabled}
                    value={rule.pattern}
                    onChange={(event) => change(at, { pattern: event.target.value })}
                  />
                </div>
                <div className="min-w-40 flex-1">
                  <TextField
                    label="Note"
                    disabled={disabled}
                    value={rule.note ?? ""}
                    onChange={(event) => change(at, { note: event.target.value || null })}
                  />
                </div>
                <Button
                  tone="ghost"
                  aria-label={`Move rule ${at + 1} up`}
                  disabled={disabled || at === 0}
                  onClick={() => move(at, -1)}
                  icon={<ArrowUp aria-hidden className="size-4" />}
                />
                <Button
                  tone="ghost"
                  aria-label={`Move rule ${at + 1} down`}
                  disabled={disabled || at === rules.length - 1}
                  onClick={() => move(at, 1)}
                  icon={<ArrowDown aria-hidden className="size-4" />}
                />
                <Button
                  tone="ghost"
                  aria-label={`Remove rule ${at + 1}`}
                  disabled={disabled}
                  onClick={() => setRules(rules.filter((_, place) => place !== at))}
                  icon={<Trash2 aria-hidden className="size-4" />}
                />
              </li>
            ))}
          </ol>
        )}
        <div className="flex flex-wrap items-end gap-2 border-t border-line p-4">
          <SelectField
            label="If no rule matches"
            disabled={disabled}
            value={usual}
            onChange={(event) => setUsual(event.target.value as "allow" | "deny")}
          >
            <option value="allow">allow</option>
            <option value="deny">deny</option>
          </SelectField>
          <div className="flex-1" />
          <Button
            disabled={disabled}
            onClick={() => setRules([...rules, { effect: "deny", pattern: "" }])}
            icon={<Plus aria-hidden className="size-4" />}
          >
            Add rule
          </Button>
          <Button tone="primary" disabled={disabled} busy={save.isPending} onClick={() => save.mutate()}>
            Save
          </Button>
        </div>
        {save.error !== null && <ErrorBox error={save.error} className="mx-4 mb-4" />}
      </Card>
      <Check policy={wanted} />
    </>
  );
}

export function CommandPolicy() {
  const query = useQuery({ queryKey: ["policy"], queryFn: () => readTagged<Policy>("/api/v1/policy") });
  return (
    <SettingsFrame admin={false}>
      <Loaded query={query}>{(policy) => <Editor policy={policy} />}</Loaded>
    </SettingsFrame>
  );
}
