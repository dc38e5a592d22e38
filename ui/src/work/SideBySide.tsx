// Figures of two attempts or entries next to each other; the better one of each is marked.
import { Check, X } from "lucide-react";
import { duration } from "../ui/format";

export interface Figures {
  name: string;
  check?: { passed: boolean };
  /** Milliseconds. */
  time?: number;
  cost?: string;
  tokens?: number;
  changes?: { files: number; added: number; removed: number };
}

export function SideBySide({ left, right }: { left: Figures; right: Figures }) {
  const row = (name: string, show: (of: Figures) => React.ReactNode) => (
    <tr className="border-b border-line last:border-0">
      <th scope="row" className="px-4 py-1.5 text-left font-normal text-dim">
        {name}
      </th>
      {[left, right].map((of, at) => (
        <td key={at} className="px-4 py-1.5 tabular-nums">
          {show(of) ?? "–"}
        </td>
      ))}
    </tr>
  );
  const less = (a: number | undefined, b: number | undefined) => a !== undefined && b !== undefined && a < b;
  const strong = (value: React.ReactNode, better: boolean) =>
    value === undefined ? undefined : better ? <strong className="font-semibold text-ok">{value}</strong> : value;
  const other = (of: Figures) => (of === left ? right : left);
  return (
    <div className="overflow-x-auto border-b border-line" tabIndex={0} role="region" aria-label="Figures side by side">
      <table className="w-full min-w-80 text-sm">
        <thead>
          <tr className="border-b border-line">
            <td className="px-4 py-1.5" />
            {[left, right].map((of) => (
              <th key={of.name} scope="col" className="px-4 py-1.5 text-left font-medium">
                {of.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {row("Check", ({ check }) =>
            check === undefined ? undefined : check.passed ? (
              <span className="inline-flex items-center gap-1 text-ok">
                <Check aria-hidden className="size-3.5" /> passed
              </span>
            ) : (
              <span className="inline-flex items-center gap-1 text-bad">
                <X aria-hidden className="size-3.5" /> failed
              </span>
            ),
          )}
          {row("Time", (of) =>
            strong(of.time === undefined ? undefined : duration(of.time), less(of.time, other(of).time)),
          )}
          {row("Cost", (of) => of.cost)}
          {row("Tokens", (of) => strong(of.tokens?.toLocaleString(), less(of.tokens, other(of).tokens)))}
          {row("Changes", ({ changes }) =>
            changes === undefined ? undefined : (
              <>
                <span className="text-ok">+{changes.added}</span> <span className="text-bad">−{changes.removed}</span>{" "}
                <span className="text-dim">in {changes.files === 1 ? "1 file" : `${changes.files} files`}</span>
              </>
            ),
          )}
        </tbody>
      </table>
    </div>
  );
}
