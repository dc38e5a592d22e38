// Comments on lines as threads, and what can be done with them.
import { useMemo } from "react";
import { useQueryClient } from "@tanstack/react-query";
import { api, take, type Schemas } from "../api/client";
import { useNameOf } from "../api/people";
import { may } from "../api/session";
import { toastError } from "../ui/feedback";

export type Remark = Schemas["InlineComment"];

export interface Thread {
  first: Remark;
  replies: Remark[];
}

export interface ThreadActions {
  reply: (to: Remark, body: string) => Promise<unknown>;
  edit: (remark: Remark, body: string) => Promise<unknown>;
  remove: (remark: Remark) => Promise<unknown>;
  /** Nothing where the forge does not let this server do it. */
  resolve?: (first: Remark, resolved: boolean) => Promise<unknown>;
  isMine: (remark: Remark) => boolean;
  /** Whether it is of this pull request, and not a message that waits for an agent. */
  has: (remark: Remark) => boolean;
}

/** Comments by their threads. Replies to a comment that was deleted stay together. */
export function threadsOf(remarks: Remark[]): Thread[] {
  const threads = new Map<string, Thread>();
  for (const remark of remarks) {
    const key = remark.in_reply_to ?? remark.id;
    const thread = threads.get(key);
    if (thread === undefined) threads.set(key, { first: remark, replies: [] });
    else thread.replies.push(remark);
  }
  return [...threads.values()];
}

export const isResolved = ({ first }: Thread) => Boolean(first.resolved_by);

export function useThreads(repository: string, pull: Schemas["Pull"] | undefined): ThreadActions | undefined {
  const number = pull?.number;
  // Only a pull request elsewhere has a page of its own. There threads are resolved, and comments are of the connection.
  const isOurs = pull?.web_url == null;
  const queries = useQueryClient();
  const nameOf = useNameOf();
  const allowed = may("write");
  return useMemo(() => {
    if (number === undefined || !allowed) return undefined;
    const done = async (work: Promise<unknown>) => {
      try {
        await work;
        await queries.invalidateQueries({ queryKey: ["repositories", repository] });
      } catch (error) {
        toastError(error);
        throw error;
      }
    };
    const path = (remark: Remark) => ({ params: { path: { repository, number, comment: remark.id } } });
    const LINE = "/api/v1/repositories/{repository}/pulls/{number}/line-comments/{comment}";
    const change = (remark: Remark, body: Schemas["ChangeLineComment"]) =>
      done(take(api.PATCH(LINE, { ...path(remark), body })));
    return {
      reply: (to, body) => done(take(api.POST(`${LINE}/replies`, { ...path(to), body: { body } }))),
      edit: (remark, body) => change(remark, { body }),
      remove: (remark) => done(take(api.DELETE(LINE, path(remark)))),
      resolve: isOurs ? (first, resolved) => change(first, { resolved }) : undefined,
      isMine: (remark) => isOurs && nameOf(remark.author) === "You",
      has: (remark) => !remark.id.startsWith("message-"),
    };
  }, [queries, repository, number, isOurs, nameOf, allowed]);
}
