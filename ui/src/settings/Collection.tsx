// What most settings are: a form that adds one, the list of what is there, and a question before one is taken away.
import type { FormEvent, ReactNode } from "react";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { CopyAs, type Recipe } from "../ui/CopyAs";
import { Confirm } from "../ui/Dialog";
import { Empty, ErrorBox, Loaded } from "../ui/feedback";
import { Card, Table, type Head } from "../ui/layout";

interface FormProps {
  title: string;
  recipe: Recipe;
  action: string;
  make: { mutate: () => void; error: unknown; isPending: boolean };
  /** How many fields stand side by side where there is room. */
  columns?: 2 | 3 | 4;
  /** Whether the caller may create one; admins may by default. */
  allowed?: boolean;
  children: ReactNode;
}

const COLUMNS = { 2: "", 3: "lg:grid-cols-3", 4: "lg:grid-cols-4" };

export function NewForm({ title, recipe, action, make, columns = 2, allowed, children }: FormProps) {
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate();
  };
  return (
    <Card title={title} actions={<CopyAs recipe={recipe} />}>
      <form onSubmit={submit} className="space-y-4 p-4">
        <div className={`grid gap-4 sm:grid-cols-2 ${COLUMNS[columns]}`}>{children}</div>
        {make.error !== null && <ErrorBox error={make.error} />}
        <div className="flex justify-end">
          <Button type="submit" tone="primary" busy={make.isPending} disabled={!(allowed ?? may("admin"))}>
            {action}
          </Button>
        </div>
      </form>
    </Card>
  );
}

interface ListProps<T> {
  title: string;
  query: { data: { items: T[] } | undefined; error: unknown; isPending: boolean; refetch: () => unknown };
  head: Head[];
  empty: { icon: ReactNode; title: string; text?: ReactNode };
  children: (item: T) => ReactNode;
}

export function List<T>({ title, query, head, empty, children }: ListProps<T>) {
  return (
    <Card title={title}>
      <Loaded query={query}>
        {({ items }) =>
          items.length === 0 ? (
            <Empty icon={empty.icon} title={empty.title}>
              {empty.text}
            </Empty>
          ) : (
            <Table label={title} head={head}>
              {items.map(children)}
            </Table>
          )
        }
      </Loaded>
    </Card>
  );
}

interface RemovalProps<T> {
  /** What is to be taken away; nothing is asked without it. */
  thing: T | undefined;
  name?: (thing: T) => string;
  onClose: () => void;
  remove: (thing: T) => Promise<unknown>;
  children: ReactNode;
}

export function Removal<T>({ thing, name, onClose, remove, children }: RemovalProps<T>) {
  const what = thing === undefined || name === undefined ? "this" : name(thing);
  return (
    <Confirm
      open={thing !== undefined}
      onClose={onClose}
      title={`Remove ${what}?`}
      action="Remove"
      danger
      onConfirm={async () => {
        if (thing !== undefined) await remove(thing);
      }}
    >
      {children}
    </Confirm>
  );
}
