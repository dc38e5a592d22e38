// A dialog with a form: its fields, what was refused, the same request as a command, and the way out.
import type { FormEvent, ReactNode } from "react";
import { Button } from "./Button";
import { CopyAs, type Recipe } from "./CopyAs";
import { Dialog } from "./Dialog";
import { ErrorBox } from "./feedback";

interface Props {
  title: string;
  description?: ReactNode;
  wide?: boolean;
  /** By default, whether a text field was typed in. */
  dirty?: boolean;
  /** The verb of the main button. */
  action: string;
  send: { mutate: () => void; error: unknown; isPending: boolean };
  disabled?: boolean;
  recipe?: Recipe;
  /** More ways to send it, next to the main one. */
  also?: ReactNode;
  onClose: () => void;
  children: ReactNode;
}

export function FormDialog(props: Props) {
  const { title, description, wide, dirty, action, send, disabled, recipe, also, onClose, children } = props;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    // A dialog within a dialog is within its form, too, as far as events go.
    event.stopPropagation();
    send.mutate();
  };
  return (
    <Dialog open onClose={onClose} title={title} description={description} wide={wide} dirty={dirty}>
      <form onSubmit={submit} className="space-y-4">
        {children}
        {send.error !== null && send.error !== undefined && <ErrorBox error={send.error} />}
        <div className="flex flex-wrap justify-end gap-2">
          {recipe !== undefined && <CopyAs recipe={recipe} />}
          <Button onClick={onClose}>Cancel</Button>
          {also}
          <Button type="submit" tone="primary" busy={send.isPending} disabled={disabled}>
            {action}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
