// Fields of forms: a label, what it means, and what is wrong with it.
import {
  useId,
  type InputHTMLAttributes,
  type ReactNode,
  type SelectHTMLAttributes,
  type TextareaHTMLAttributes,
} from "react";
import { Switch as Radix } from "radix-ui";
import { classes } from "./classes";

const BOX =
  "w-full rounded-md border border-line bg-surface px-2.5 py-1.5 text-sm text-ink placeholder:text-dim disabled:opacity-60";

interface Common {
  label: string;
  hint?: ReactNode;
  hideLabel?: boolean;
}

function Labelled({ id, label, hint, hideLabel, children }: Common & { id: string; children: ReactNode }) {
  return (
    <div className="min-w-0 space-y-1">
      <label htmlFor={id} className={hideLabel === true ? "sr-only" : "block text-sm font-medium"}>
        {label}
      </label>
      {children}
      {hint !== undefined && (
        <p id={`${id}-hint`} className="text-xs text-dim">
          {hint}
        </p>
      )}
    </div>
  );
}

export function TextField({
  label,
  hint,
  hideLabel,
  className,
  ...rest
}: Common & InputHTMLAttributes<HTMLInputElement>) {
  const id = useId();
  return (
    <Labelled id={id} label={label} hint={hint} hideLabel={hideLabel}>
      <input
        autoComplete="off"
        spellCheck={false}
        {...rest}
        id={id}
        aria-describedby={hint === undefined ? undefined : `${id}-hint`}
        className={classes(BOX, "h-8", className)}
      />
    </Labelled>
  );
}

export function TextArea({
  label,
  hint,
  hideLabel,
  className,
  ...rest
}: Common & TextareaHTMLAttributes<HTMLTextAreaElement>) {
  const id = useId();
  return (
    <Labelled id={id} label={label} hint={hint} hideLabel={hideLabel}>
      <textarea
        spellCheck={false}
        {...rest}
        id={id}
        aria-describedby={hint === undefined ? undefined : `${id}-hint`}
        className={classes(BOX, "min-h-20 font-mono text-[13px]", className)}
      />
    </Labelled>
  );
}

export function SelectField({
  label,
  hint,
  hideLabel,
  className,
  children,
  ...rest
}: Common & SelectHTMLAttributes<HTMLSelectElement>) {
  const id = useId();
  return (
    <Labelled id={id} label={label} hint={hint} hideLabel={hideLabel}>
      <select
        {...rest}
        id={id}
        aria-describedby={hint === undefined ? undefined : `${id}-hint`}
        className={classes(BOX, "h-8 pr-8", className)}
      >
        {children}
      </select>
    </Labelled>
  );
}

export function CheckField({ label, hint, ...rest }: Common & InputHTMLAttributes<HTMLInputElement>) {
  const id = useId();
  return (
    <div className="flex gap-2">
      <input
        type="checkbox"
        {...rest}
        id={id}
        aria-describedby={hint === undefined ? undefined : `${id}-hint`}
        className="mt-0.5 size-4 accent-(--accent)"
      />
      <div>
        <label htmlFor={id} className="text-sm font-medium">
          {label}
        </label>
        {hint !== undefined && (
          <p id={`${id}-hint`} className="text-xs text-dim">
            {hint}
          </p>
        )}
      </div>
    </div>
  );
}

/** Turns one thing on or off at once. */
export function Switch({
  label,
  checked,
  disabled,
  onChange,
}: {
  label: string;
  checked: boolean;
  disabled?: boolean;
  onChange: (on: boolean) => void;
}) {
  const id = useId();
  return (
    <div className="flex h-8 items-center gap-2 text-sm whitespace-nowrap">
      <Radix.Root
        id={id}
        checked={checked}
        disabled={disabled}
        onCheckedChange={onChange}
        className="h-5 w-9 shrink-0 rounded-full border border-dim/60 bg-raised p-px transition-colors disabled:cursor-not-allowed disabled:opacity-60 data-[state=checked]:border-accent data-[state=checked]:bg-accent"
      >
        <Radix.Thumb className="block size-4 rounded-full bg-dim transition-transform data-[state=checked]:translate-x-4 data-[state=checked]:bg-on-accent" />
      </Radix.Root>
      <label htmlFor={id}>{label}</label>
    </div>
  );
}
