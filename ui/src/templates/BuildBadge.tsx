import { Badge } from "../ui/Badge";
import { classes } from "../ui/classes";
import { isOver, stateWords } from "./words";

export function BuildBadge({ state }: { state: string }) {
  const [words, tone] = stateWords(state);
  return (
    <Badge tone={tone}>
      <span aria-hidden className={classes("size-1.5 rounded-full bg-current", !isOver(state) && "animate-pulse")} />
      {words}
    </Badge>
  );
}
