import { useEffect, useRef, type ReactNode } from "react";
import { useRouterState } from "@tanstack/react-router";

/** How a link to a page beside this one looks. */
export const TAB =
  "-mb-px border-b-2 border-transparent px-3 py-2 text-sm whitespace-nowrap text-dim hover:text-ink data-[status=active]:border-accent data-[status=active]:font-medium data-[status=active]:text-ink";

/** Pages beside each other. On a narrow screen the one that is open may be beyond the edge; it is brought into view. */
export function Tabs({ label, className, children }: { label: string; className?: string; children: ReactNode }) {
  const bar = useRef<HTMLElement>(null);
  const path = useRouterState({ select: (state) => state.location.pathname });
  useEffect(() => {
    void bar.current?.querySelector("[data-status=active]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [path]);
  return (
    <nav ref={bar} aria-label={label} className={`flex gap-1 overflow-x-auto ${className ?? ""}`}>
      {children}
    </nav>
  );
}
