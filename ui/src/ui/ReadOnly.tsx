import { Lock } from "lucide-react";

/** Says once for a page why its buttons are off: touch screens show no tooltips. */
export function ReadOnly({ why }: { why: string | undefined }) {
  if (why === undefined) return null;
  return (
    <p className="flex items-center gap-2 rounded-lg border border-line bg-raised px-4 py-2 text-dim">
      <Lock aria-hidden className="size-4 shrink-0" />
      {why}
    </p>
  );
}
