// The todo list of an agent.
import { CircleCheck, CircleDashed, CircleDot, CircleSlash } from "lucide-react";
import { plainText } from "../ui/format";

const LOOKS: Record<string, [typeof CircleCheck, string, string, string]> = {
  done: [CircleCheck, "text-ok", "done:", "text-dim"],
  in_progress: [CircleDot, "text-accent", "in progress:", "font-medium"],
  cancelled: [CircleSlash, "text-dim", "cancelled:", "text-dim line-through"],
};

export function Todos({ items }: { items: { text: string; state: string }[] }) {
  return (
    <ul className="space-y-1">
      {items.map((item, at) => {
        const [Mark, look, said, words] = LOOKS[item.state] ?? [CircleDashed, "text-dim", "to do:", ""];
        return (
          <li key={at} className="flex gap-2">
            <Mark aria-hidden className={`mt-0.5 size-4 shrink-0 ${look}`} />
            <span className="sr-only">{said}</span>
            <span className={`min-w-0 flex-1 break-words ${words}`}>{plainText(item.text)}</span>
          </li>
        );
      })}
    </ul>
  );
}
