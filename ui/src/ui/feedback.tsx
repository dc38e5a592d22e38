// The states of anything that is loaded: loading, empty, refused.
import type { ReactNode } from "react";
import { CircleAlert, LoaderCircle, RotateCw } from "lucide-react";
import { toast } from "sonner";
import { ApiError } from "../api/client";
import { Button } from "./Button";
import { classes } from "./classes";

export function Loading({ what = "Loading" }: { what?: string }) {
  return (
    <div role="status" className="flex items-center justify-center gap-2 p-10 text-dim">
      <LoaderCircle aria-hidden className="size-4 animate-spin" />
      {what}…
    </div>
  );
}

export function Empty({ icon, title, children }: { icon?: ReactNode; title: string; children?: ReactNode }) {
  return (
    <div className="flex flex-col items-center gap-2 px-6 py-12 text-center text-dim">
      {icon}
      <p className="text-base font-medium text-ink">{title}</p>
      {children !== undefined && <div className="max-w-md space-y-3">{children}</div>}
    </div>
  );
}

/** What to show people of an error: what happened, what to do about it, and how to find it in the log. */
export function described(error: unknown): { title: string; hint?: string; id?: string } {
  if (error instanceof ApiError) {
    const wait = error.retryAfter !== undefined ? ` Try again in ${error.retryAfter} s.` : "";
    const hint = `${error.hint ?? ""}${wait}`.trim();
    return { title: sentence(error.message), hint: hint === "" ? undefined : sentence(hint), id: error.requestId };
  }
  return { title: error instanceof Error ? sentence(error.message) : "Something went wrong." };
}

function sentence(text: string): string {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(first) ? first : `${first}.`;
}

export function ErrorBox({ error, retry, className }: { error: unknown; retry?: () => void; className?: string }) {
  const { title, hint, id } = described(error);
  return (
    <div role="alert" className={classes("flex gap-3 rounded-lg border border-bad/40 bg-bad-soft p-4", className)}>
      <CircleAlert aria-hidden className="mt-0.5 size-4 shrink-0 text-bad" />
      <div className="min-w-0 flex-1 space-y-1">
        <p className="font-medium break-words text-bad">{title}</p>
        {hint !== undefined && <p className="break-words text-ink">{hint}</p>}
        {id !== undefined && (
          <p className="text-xs text-ink">
            Request <code className="font-mono">{id}</code>
          </p>
        )}
      </div>
      {retry !== undefined && (
        <Button onClick={retry} icon={<RotateCw aria-hidden className="size-3.5" />}>
          Retry
        </Button>
      )}
    </div>
  );
}

/** Tells of a refusal where the action has no place of its own to tell it. */
export function toastError(error: unknown) {
  const { title, hint, id } = described(error);
  const more = [hint, id === undefined ? undefined : `Request ${id}`].filter((part) => part !== undefined);
  toast.error(title, { description: more.length > 0 ? more.join(" · ") : undefined, duration: 10_000 });
}

/** What a query has: its data shown, or why there is none. */
export function Loaded<T>({
  query,
  children,
  what,
}: {
  query: { data: T | undefined; error: unknown; isPending: boolean; refetch: () => unknown };
  children: (data: T) => ReactNode;
  what?: string;
}) {
  if (query.data !== undefined) return <>{children(query.data)}</>;
  if (query.error) return <ErrorBox error={query.error} retry={() => void query.refetch()} className="m-4" />;
  return <Loading what={what} />;
}
