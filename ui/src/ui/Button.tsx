import type { ButtonHTMLAttributes, ReactNode, Ref } from "react";
import { LoaderCircle } from "lucide-react";
import { classes } from "./classes";

type Tone = "plain" | "primary" | "danger" | "ghost";

const TONES: Record<Tone, string> = {
  plain: "border border-line bg-surface text-ink hover:bg-raised",
  primary: "bg-accent text-on-accent hover:brightness-110",
  danger: "border border-bad/40 bg-bad-soft text-bad hover:border-bad",
  ghost: "text-dim hover:bg-raised hover:text-ink",
};

interface Props extends ButtonHTMLAttributes<HTMLButtonElement> {
  tone?: Tone;
  busy?: boolean;
  icon?: ReactNode;
  ref?: Ref<HTMLButtonElement>;
}

export function Button({ tone = "plain", busy = false, icon, children, className, disabled, ...rest }: Props) {
  return (
    <button
      type="button"
      {...rest}
      disabled={disabled === true || busy}
      aria-busy={busy || undefined}
      className={classes(
        "inline-flex h-8 shrink-0 items-center justify-center gap-1.5 rounded-md px-3 text-sm font-medium whitespace-nowrap",
        "transition-colors disabled:cursor-not-allowed disabled:opacity-60",
        children === undefined && "w-8 px-0",
        TONES[tone],
        className,
      )}
    >
      {busy ? <LoaderCircle aria-hidden className="size-4 animate-spin" /> : icon}
      {children}
    </button>
  );
}
