import type { ReactNode } from "react";
import { useTitle } from "../shell/title";
import { classes } from "./classes";

interface PageProps {
  title: ReactNode;
  /** What the tab is called, where the title is more than words. */
  name?: string;
  actions?: ReactNode;
  children: ReactNode;
  fill?: boolean;
}

export function Page({
  title,
  name = typeof title === "string" ? title : "",
  actions,
  children,
  fill = false,
}: PageProps) {
  useTitle(name);
  return (
    <div className={classes("mx-auto flex w-full max-w-[1400px] flex-col gap-4 p-3 sm:p-5", fill && "h-full min-h-0")}>
      <div className="flex flex-wrap items-center justify-between gap-3">
        <h1 className="min-w-0 text-xl font-semibold">{title}</h1>
        {actions !== undefined && <div className="flex flex-wrap items-center gap-2">{actions}</div>}
      </div>
      {children}
    </div>
  );
}

export function Card({
  title,
  actions,
  children,
  className,
}: {
  title?: ReactNode;
  actions?: ReactNode;
  children: ReactNode;
  className?: string;
}) {
  return (
    <section className={classes("min-w-0 rounded-lg border border-line bg-surface", className)}>
      {title !== undefined && (
        <div className="flex min-h-11 flex-wrap items-center justify-between gap-2 border-b border-line px-4 py-1.5">
          <h2 className="font-semibold">{title}</h2>
          {actions}
        </div>
      )}
      {children}
    </section>
  );
}

/** Name and value, one below the other on a phone. */
export function Facts({ facts }: { facts: [string, ReactNode][] }) {
  return (
    <dl className="grid grid-cols-2 sm:grid-cols-[repeat(auto-fill,minmax(140px,1fr))] gap-x-6 gap-y-3 p-4">
      {facts.map(([name, value]) => (
        <div key={name} className="min-w-0">
          <dt className="text-xs text-dim">{name}</dt>
          <dd className="mt-0.5 break-words">{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A column that a phone leaves out; its cells are `wide` too. */
export interface WideHead {
  wide: ReactNode;
}

export type Head = ReactNode | WideHead;

function isWide(head: ReactNode | WideHead): head is WideHead {
  return typeof head === "object" && head !== null && "wide" in head;
}

/** A table that scrolls by itself where the screen is narrow. */
export function Table({ head, children, label }: { head: Head[]; children: ReactNode; label: string }) {
  return (
    <div className="overflow-x-auto" role="region" aria-label={label} tabIndex={0}>
      <table className="w-full border-collapse text-sm" aria-label={label}>
        <thead>
          <tr className="border-b border-line text-left text-xs text-dim">
            {head.map((cell, at) => (
              <th
                key={at}
                scope="col"
                className={classes("px-4 py-2 font-medium whitespace-nowrap", isWide(cell) && "max-sm:hidden")}
              >
                {isWide(cell) ? cell.wide : cell}
              </th>
            ))}
          </tr>
        </thead>
        <tbody className="divide-y divide-line">{children}</tbody>
      </table>
    </div>
  );
}

export function Cell({
  children,
  className,
  wide = false,
}: {
  children: ReactNode;
  className?: string;
  wide?: boolean;
}) {
  return <td className={classes("px-4 py-2 align-middle", wide && "max-sm:hidden", className)}>{children}</td>;
}

export function Meter({ value, top, label }: { value: number; top: number | null | undefined; label: string }) {
  const share = top ? Math.min(1, value / top) : 0;
  return (
    <div
      role="meter"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={top ?? undefined}
      aria-valuenow={value}
      className="h-1.5 overflow-hidden rounded-full bg-raised"
    >
      <div
        className={classes("h-full rounded-full", share >= 1 ? "bg-bad" : share > 0.8 ? "bg-warn" : "bg-accent")}
        style={{ width: `${share * 100}%` }}
      />
    </div>
  );
}
