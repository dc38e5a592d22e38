import type { ReactNode } from "react";
import { Link } from "@tanstack/react-router";
import { plainText } from "../ui/format";

/** The pull request of this server's own that an address names. */
export function ownPull(url: string): { repository: string; number: string } | undefined {
  const found = /(?:^|\/)repositories\/([^/?#]+)\/pulls\/(\d+)$/.exec(url);
  return found === null ? undefined : { repository: decodeURIComponent(found[1] ?? ""), number: found[2] ?? "" };
}

/** The way to a pull request: a page of ours, or its forge's. An address of another kind is shown as text. */
export function PullLink({ url, children }: { url: string; children?: ReactNode }) {
  const own = ownPull(url);
  const look = "text-accent underline";
  if (own !== undefined) {
    return (
      <Link to="/repositories/$repository/pulls/$number" params={own} className={look}>
        {children ?? `Pull request #${own.number}`}
      </Link>
    );
  }
  if (!/^https?:\/\//.test(url)) return <span className="break-all">{plainText(url)}</span>;
  return (
    <a href={url} target="_blank" rel="noopener noreferrer" className={`${look} break-all`}>
      {children ?? plainText(url)}
    </a>
  );
}
