import type { FormEvent, ReactNode } from "react";
import { useState } from "react";
import { useBlocker } from "@tanstack/react-router";
import { Dialog as Radix } from "radix-ui";
import { X } from "lucide-react";
import { Button } from "./Button";
import { classes } from "./classes";
import { ErrorBox } from "./feedback";

interface Props {
  open: boolean;
  onClose: () => void;
  title: string;
  description?: ReactNode;
  children: ReactNode;
  wide?: boolean | "very";
  /** Whether something was typed that closing would lose: then it asks first. By default, whether a text field was typed in. */
  dirty?: boolean;
}

/** Fields that hold what a person wrote, and not what they look for or choose. */
function isText(target: EventTarget): boolean {
  if (target instanceof HTMLTextAreaElement) return true;
  return target instanceof HTMLInputElement && ["text", "password", "email", "url", "number"].includes(target.type);
}

export function Dialog({ open, onClose, title, description, children, wide = false, dirty: known }: Props) {
  const [asking, setAsking] = useState(false);
  const [typed, setTyped] = useState(false);
  const dirty = open && (known ?? typed);
  // The browser's own ways out: back, forward, another address, closing the tab.
  useBlocker({
    shouldBlockFn: ({ action }) => {
      if (!dirty || (action !== "BACK" && action !== "FORWARD")) return false;
      setAsking(true);
      return true;
    },
    enableBeforeUnload: dirty,
  });
  const close = () => (dirty ? setAsking(true) : onClose());
  // Opened again, it starts without what was typed before.
  const [wasOpen, setWasOpen] = useState(open);
  if (wasOpen !== open) {
    setWasOpen(open);
    setTyped(false);
    setAsking(false);
  }
  return (
    <Radix.Root open={open} onOpenChange={(next) => !next && close()}>
      <Radix.Portal>
        <Radix.Overlay className="fixed inset-0 z-50 bg-black/50" />
        <Radix.Content
          data-typed={dirty || undefined}
          onInput={({ currentTarget, target }) => {
            // A dialog within this one tells this one, too.
            if (currentTarget.contains(target as Node) && isText(target)) setTyped(true);
          }}
          {...(description === undefined ? { "aria-describedby": undefined } : {})}
          className={classes(
            "fixed top-1/2 left-1/2 z-50 max-h-[90dvh] w-[calc(100vw-24px)] -translate-x-1/2 -translate-y-1/2",
            "overflow-y-auto rounded-xl border border-line bg-surface p-5 shadow-xl",
            wide === "very" ? "max-w-5xl" : wide ? "max-w-2xl" : "max-w-md",
          )}
        >
          <div className="mb-4 flex items-start justify-between gap-4">
            <div>
              <Radix.Title className="text-lg font-semibold">{title}</Radix.Title>
              {description !== undefined && (
                <Radix.Description className="mt-1 text-dim">{description}</Radix.Description>
              )}
            </div>
            <Radix.Close asChild>
              <Button tone="ghost" aria-label="Close" icon={<X aria-hidden className="size-4" />} />
            </Radix.Close>
          </div>
          {children}
          {asking && dirty && (
            <div
              role="alertdialog"
              aria-label="Discard what you typed?"
              className="sticky bottom-0 mt-4 flex flex-wrap items-center justify-between gap-2 rounded-lg border border-warn/40 bg-warn-soft p-3"
            >
              <span className="font-medium text-warn">Discard what you typed?</span>
              <div className="flex gap-2">
                <Button autoFocus onClick={() => setAsking(false)}>
                  Keep editing
                </Button>
                <Button
                  tone="danger"
                  onClick={() => {
                    setTyped(false);
                    setAsking(false);
                    onClose();
                  }}
                >
                  Discard
                </Button>
              </div>
            </div>
          )}
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  );
}

interface ConfirmProps {
  open: boolean;
  onClose: () => void;
  title: string;
  children: ReactNode;
  action: string;
  danger?: boolean;
  onConfirm: () => Promise<unknown>;
}

/** Asks before something that cannot be undone. Stays open, and says why, when it is refused. */
export function Confirm({ open, onClose, title, children, action, danger = false, onConfirm }: ConfirmProps) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      await onConfirm();
      onClose();
    } catch (refused) {
      setError(refused);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog open={open} onClose={onClose} title={title}>
      <form onSubmit={(event) => void submit(event)} className="space-y-4">
        <div className="text-dim">{children}</div>
        {error !== undefined && <ErrorBox error={error} />}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone={danger ? "danger" : "primary"} busy={busy}>
            {action}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
