import { useState, type FormEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Wallet } from "lucide-react";
import { api, take, type Schemas } from "../api/client";
import { may } from "../api/session";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Confirm } from "../ui/Dialog";
import { Empty, ErrorBox, Loaded } from "../ui/feedback";
import { SelectField, TextField } from "../ui/fields";
import { money } from "../ui/format";
import { Card, Cell, Meter, Table } from "../ui/layout";
import { SettingsFrame } from "./SettingsFrame";

type Budget = Schemas["Budget"];
type NewBudget = Schemas["NewBudget"];

export function Budgets() {
  const queries = useQueryClient();
  const query = useQuery({ queryKey: ["budgets"], queryFn: () => take(api.GET("/api/v1/budgets", { params: { query: { limit: 200 } } })) });
  const [amount, setAmount] = useState("50");
  const [period, setPeriod] = useState<NewBudget["period"]>("month");
  const [action, setAction] = useState<NonNullable<NewBudget["action"]>>("pause");
  const [warn, setWarn] = useState("50, 80");
  const [removing, setRemoving] = useState<Budget>();
  const fresh = () => queries.invalidateQueries({ queryKey: ["budgets"] });
  const body = (): NewBudget => ({ amount: Number(amount), period, action, warn_at: warn.split(/[\s,]+/).filter(Boolean).map(Number) });
  const make = useMutation({
    mutationFn: () => take(api.POST("/api/v1/budgets", { body: body() })),
    onSuccess: fresh,
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate();
  };
  return (
    <SettingsFrame admin={false}>
      <Card title="New budget" actions={<CopyAs recipe={{ curl: curl("POST", "/api/v1/budgets", body()) }} />}>
        <form onSubmit={submit} className="grid gap-4 p-4 sm:grid-cols-2 lg:grid-cols-4">
          <TextField label="Amount" type="number" min="0" step="any" required value={amount} onChange={(event) => setAmount(event.target.value)} />
          <SelectField label="For each" value={period} onChange={(event) => setPeriod(event.target.value as NewBudget["period"])}>
            <option value="day">day</option>
            <option value="month">month</option>
            <option value="total">all time</option>
          </SelectField>
          <SelectField label="When it is spent" value={action} onChange={(event) => setAction(event.target.value as typeof action)}>
            <option value="pause">pause what runs</option>
            <option value="end">destroy what runs</option>
          </SelectField>
          <TextField label="Warn at percent" value={warn} onChange={(event) => setWarn(event.target.value)} />
          {make.error !== null && <ErrorBox error={make.error} className="sm:col-span-2 lg:col-span-4" />}
          <div className="flex justify-end sm:col-span-2 lg:col-span-4">
            <Button type="submit" tone="primary" busy={make.isPending} disabled={!may("admin")}>
              Set it
            </Button>
          </div>
        </form>
      </Card>
      <Card title="Budgets">
        <Loaded query={query}>
          {({ items }) =>
            items.length === 0 ? (
              <Empty icon={<Wallet aria-hidden className="size-6" />} title="No budget is set" />
            ) : (
              <Table label="Budgets" head={["For", "Each", "Spent", "", "Then", ""]}>
                {items.map((budget) => (
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
                      <Button tone="danger" disabled={!may("admin")} onClick={() => setRemoving(budget)}>
                        Remove
                      </Button>
                    </Cell>
                  </tr>
                ))}
              </Table>
            )
          }
        </Loaded>
      </Card>
      <Confirm
        open={removing !== undefined}
        onClose={() => setRemoving(undefined)}
        title="Remove this budget?"
        action="Remove it"
        danger
        onConfirm={async () => {
          await take(api.DELETE("/api/v1/budgets/{budget}", { params: { path: { budget: removing?.id ?? "" } } }));
          await fresh();
        }}
      >
        Nothing limits the spending of that period any more. What it has paused stays paused.
      </Confirm>
    </SettingsFrame>
  );
}
