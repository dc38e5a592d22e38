import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Wallet } from "lucide-react";
import { api, take, type Schemas } from "../api/client";
import { usePrices } from "../api/prices";
import { may } from "../api/session";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { SelectField, TextField } from "../ui/fields";
import { money } from "../ui/format";
import { Card, Cell, Facts, Meter } from "../ui/layout";
import { List, NewForm, Removal } from "./Collection";
import { SettingsFrame } from "./SettingsFrame";

type Budget = Schemas["Budget"];
type NewBudget = Schemas["NewBudget"];

const HOUR = 3600;

function PricesCard() {
  const prices = usePrices();
  if (prices === undefined) return null;
  const { currency, cpu_second: cpu, memory_gib_second: memory, sandbox_second: sandbox } = prices;
  return (
    <Card title="Prices" actions={<CopyAs recipe={{ curl: curl("GET", "/api/v1/prices") }} />}>
      <Facts
        facts={[
          ["A processor, each hour", money(cpu * HOUR, currency)],
          ["A GiB of memory, each hour", money(memory * HOUR, currency)],
          ["The sandbox itself, each hour", money(sandbox * HOUR, currency)],
        ]}
      />
      <p className="border-t border-line px-4 py-3 text-dim">
        {cpu + memory + sandbox === 0 ? "Sandbox time has no price yet. " : ""}A project's budget counts sandbox time,
        calls of models through the gateway, and what agents report of other calls; Monitoring shows each. The operator
        sets prices in <code className="font-mono">[usage]</code> of the configuration.
      </p>
    </Card>
  );
}

export function Budgets() {
  const queries = useQueryClient();
  const query = useQuery({
    queryKey: ["budgets"],
    queryFn: () => take(api.GET("/api/v1/budgets", { params: { query: { limit: 200 } } })),
  });
  const [amount, setAmount] = useState("50");
  const [period, setPeriod] = useState<NewBudget["period"]>("month");
  const [action, setAction] = useState<NonNullable<NewBudget["action"]>>("pause");
  const [warn, setWarn] = useState("50, 80");
  const [removing, setRemoving] = useState<Budget>();
  const fresh = () => queries.invalidateQueries({ queryKey: ["budgets"] });
  const body = (): NewBudget => ({
    amount: Number(amount),
    period,
    action,
    warn_at: warn
      .split(/[\s,]+/)
      .filter(Boolean)
      .map(Number),
  });
  const make = useMutation({
    mutationFn: () => take(api.POST("/api/v1/budgets", { body: body() })),
    onSuccess: fresh,
  });
  return (
    <SettingsFrame admin={false}>
      <NewForm
        title="New budget"
        recipe={{ curl: curl("POST", "/api/v1/budgets", body()) }}
        action="Create"
        make={make}
        columns={4}
      >
        <TextField
          label="Amount"
          type="number"
          min="0"
          step="any"
          required
          value={amount}
          onChange={(event) => setAmount(event.target.value)}
        />
        <SelectField
          label="For each"
          value={period}
          onChange={(event) => setPeriod(event.target.value as NewBudget["period"])}
        >
          <option value="day">day</option>
          <option value="month">month</option>
          <option value="total">all time</option>
        </SelectField>
        <SelectField
          label="When it is spent"
          value={action}
          onChange={(event) => setAction(event.target.value as typeof action)}
        >
          <option value="pause">pause what runs</option>
          <option value="end">destroy what runs</option>
        </SelectField>
        <TextField label="Warn at percent" value={warn} onChange={(event) => setWarn(event.target.value)} />
      </NewForm>
      <List
        title="Budgets"
        query={query}
        head={["For", "Each", "Spent", "", "Then", ""]}
        empty={{ icon: <Wallet aria-hidden className="size-6" />, title: "No budgets yet" }}
      >
        {(budget) => (
          <tr key={budget.id}>
            <Cell>{budget.sandbox_id ?? "the project"}</Cell>
            <Cell>{budget.period}</Cell>
            <Cell className="whitespace-nowrap">
              {money(budget.spent, budget.currency)} of {money(budget.amount, budget.currency)}
            </Cell>
            <Cell className="min-w-32">
              <Meter value={budget.spent} top={budget.amount} label={`Spent of the budget of each ${budget.period}`} />
            </Cell>
            <Cell>{budget.exceeded ? <Badge tone="bad">spent</Badge> : budget.action}</Cell>
            <Cell className="text-right">
              <Button tone="quiet-danger" disabled={!may("admin")} onClick={() => setRemoving(budget)}>
                Remove
              </Button>
            </Cell>
          </tr>
        )}
      </List>
      <PricesCard />
      <Removal
        thing={removing}
        name={(budget) => `this budget of each ${budget.period}`}
        onClose={() => setRemoving(undefined)}
        remove={async ({ id }) => {
          await take(api.DELETE("/api/v1/budgets/{budget}", { params: { path: { budget: id } } }));
          await fresh();
        }}
      >
        Spending of that period is no longer limited. Paused sandboxes stay paused.
      </Removal>
    </SettingsFrame>
  );
}
