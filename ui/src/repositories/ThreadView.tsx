// A thread of comments on a line: what was said by whom and when, replies, and whether it is resolved.
import { useState, type FormEvent, type ReactNode } from "react";
import { Check, MessageSquareReply, Pencil, RotateCcw, Trash2 } from "lucide-react";
import { useNameOf } from "../api/people";
import { Button } from "../ui/Button";
import { Confirm } from "../ui/Dialog";
import { TextArea } from "../ui/fields";
import { plainText } from "../ui/format";
import { Markdown } from "../ui/Markdown";
import { Ago } from "../ui/time";
import { isResolved, type Remark, type Thread, type ThreadActions } from "./threads";

/** Words about a line, with the ways to send them. `Ctrl+Enter` sends. */
export function WordsForm({
  label,
  action,
  initial = "",
  onSend,
  onClose,
  children,
}: {
  label: string;
  action: string;
  initial?: string;
  onSend: (body: string) => Promise<unknown>;
  onClose: () => void;
  children?: (body: string) => ReactNode;
}) {
  const [body, setBody] = useState(initial);
  const [busy, setBusy] = useState(false);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (body.trim() === "") return;
    setBusy(true);
    onSend(body).then(onClose, () => setBusy(false));
  };
  return (
    <form onSubmit={submit} className="space-y-2 font-sans">
      <TextArea
        label={label}
        hideLabel
        placeholder={label}
        required
        autoFocus
        value={body}
        onChange={(event) => setBody(event.target.value)}
        className="min-h-16 font-sans"
      />
      <div className="flex flex-wrap justify-end gap-2">
        <Button onClick={onClose}>Cancel</Button>
        {children?.(body)}
        <Button type="submit" tone="primary" busy={busy} disabled={body.trim() === ""}>
          {action}
        </Button>
      </div>
    </form>
  );
}

function One({ remark, actions }: { remark: Remark; actions?: ThreadActions }) {
  const nameOf = useNameOf();
  const [editing, setEditing] = useState(false);
  const [deleting, setDeleting] = useState(false);
  const mine = actions?.has(remark) === true && actions.isMine(remark);
  return (
    <article aria-label={`Comment by ${plainText(nameOf(remark.author))}`} className="group/one">
      <div className="flex min-h-7 items-center gap-2 text-xs text-dim">
        <span className="font-medium text-ink">{plainText(nameOf(remark.author))}</span>
        {remark.created_at !== "" && <Ago at={remark.created_at} />}
        {remark.updated_at && <span>edited</span>}
        <span className="flex-1" />
        {mine && !editing && (
          <span className="flex opacity-0 group-focus-within/one:opacity-100 group-hover/one:opacity-100 [@media(hover:none)]:opacity-100">
            <Button
              tone="ghost"
              className="size-7"
              aria-label="Edit the comment"
              onClick={() => setEditing(true)}
              icon={<Pencil aria-hidden className="size-3.5" />}
            />
            <Button
              tone="quiet-danger"
              className="size-7"
              aria-label="Delete the comment"
              onClick={() => setDeleting(true)}
              icon={<Trash2 aria-hidden className="size-3.5" />}
            />
          </span>
        )}
      </div>
      {editing && actions !== undefined ? (
        <WordsForm
          label="Edit the comment"
          action="Save"
          initial={remark.body}
          onSend={(body) => actions.edit(remark, body)}
          onClose={() => setEditing(false)}
        />
      ) : (
        <Markdown text={remark.body} />
      )}
      <Confirm
        open={deleting}
        onClose={() => setDeleting(false)}
        title="Delete this comment?"
        action="Delete"
        danger
        onConfirm={async () => {
          await actions?.remove(remark);
        }}
      >
        Replies to it stay.
      </Confirm>
    </article>
  );
}

export function ThreadView({ thread, actions }: { thread: Thread; actions?: ThreadActions }) {
  const nameOf = useNameOf();
  const { first, replies } = thread;
  const resolved = isResolved(thread);
  const [open, setOpen] = useState(false);
  const [replying, setReplying] = useState(false);
  const can = actions?.has(first) === true ? actions : undefined;
  // As wide as what is seen, however long the lines are.
  const inside = "sticky left-0 max-w-[min(48rem,calc(100vw-2rem))] px-4 py-2";
  const box = "border-y border-line bg-surface font-sans text-sm whitespace-normal";
  if (resolved && !open)
    return (
      <div data-thread="resolved" className={box}>
        <div className={`${inside} flex items-center gap-2 text-dim`}>
          <Check aria-hidden className="size-4 shrink-0 text-ok" />
          <span className="min-w-0 flex-1 truncate">
            Resolved by {plainText(nameOf(first.resolved_by))}: {plainText(first.body.slice(0, 200))}
          </span>
          <Button tone="ghost" className="h-7 px-2" onClick={() => setOpen(true)}>
            Show
          </Button>
        </div>
      </div>
    );
  return (
    <div data-thread={resolved ? "resolved" : "open"} className={box}>
      <div className={`${inside} space-y-2`}>
        <One remark={first} actions={actions} />
        {replies.length > 0 && (
          <div className="space-y-2 border-l-2 border-line pl-3">
            {replies.map((reply) => (
              <One key={reply.id} remark={reply} actions={actions} />
            ))}
          </div>
        )}
        {can !== undefined &&
          (replying ? (
            <WordsForm
              label="Reply"
              action="Reply"
              onSend={(body) => can.reply(first, body)}
              onClose={() => setReplying(false)}
            />
          ) : (
            <div className="flex flex-wrap gap-1">
              <Button
                tone="ghost"
                className="h-7 px-2"
                onClick={() => setReplying(true)}
                icon={<MessageSquareReply aria-hidden className="size-3.5" />}
              >
                Reply
              </Button>
              {can.resolve !== undefined && (
                <Button
                  tone="ghost"
                  className="h-7 px-2"
                  onClick={() => {
                    setOpen(false);
                    void can.resolve?.(first, !resolved).catch(() => undefined);
                  }}
                  icon={
                    resolved ? (
                      <RotateCcw aria-hidden className="size-3.5" />
                    ) : (
                      <Check aria-hidden className="size-3.5" />
                    )
                  }
                >
                  {resolved ? "Reopen" : "Resolve"}
                </Button>
              )}
            </div>
          ))}
      </div>
    </div>
  );
}
