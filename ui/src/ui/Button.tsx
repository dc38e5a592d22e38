import type { ButtonHTMLAttributes, ReactNode, Ref } from "react";
import { LoaderCircle } from "lucide-react";
import { classes } from "./classes";

type Tone = "plain" | "primary" | "danger" | "quiet-danger" | "ghost";

const TONES: Record<Tone, string> = {
  plain: "border border-line bg-surface text-ink hover:bg-raised",
  primary: "bg-accent text-on-accent hover:brightness-110",
  danger: "border border-bad/40 bg-bad-soft text-bad hover:border-bad",
  // For rows and headers: red only when pointed at, because a page is not a warning.
  "quiet-danger": "text-dim hover:bg-bad-soft hover:text-bad",
  ghost: "text-dim hover:bg-raised hover:text-ink",
};

interface Props extends ButtonHTMLAttributes<HTMLButtonElement> {
  tone?: Tone;
  busy?: boolean;
  icon?: ReactNode;
  /** Why it cannot be pressed. It can still be reached and pointed at, so that people see or hear the reason. */
  why?: string;
  ref?: Ref<HTMLButtonElement>;
}

export function Button({ tone = "plain", busy = false, icon, children, className, disabled, why, ...rest }: Props) {
  const refused = why === undefined ? {} : { "aria-disabled": true, title: why, onClick: undefined };
  return (
    <button
      type="button"
      {...rest}
      {...refused}
      disabled={disabled === true || busy}
      aria-busy={busy || undefined}
      className={classes(
        "inline-flex h-8 shrink-0 items-center justify-center gap-1.5 rounded-md px-3 text-sm font-medium whitespace-nowrap",
        "transition-colors disabled:cursor-not-allowed disabled:opacity-60",
        children === undefined && "w-8 px-0",
        TONES[tone],
        why !== undefined && "cursor-not-allowed opacity-60",
        className,
      )}
    >
      {busy ? <LoaderCircle aria-hidden className="size-4 animate-spin" /> : icon}
      {children}
    </button>
  );
}
