// One action on many tasks: a few requests at a time, and what failed is told with its reason.
import { toast } from "sonner";
import { described } from "../ui/feedback";

const AT_ONCE = 4;

/** Acts on each, in order, a few at a time; returns those that failed, each with its reason. */
export async function onEach<T>(all: T[], act: (one: T) => Promise<unknown>): Promise<[T, unknown][]> {
  const failed: [T, unknown][] = [];
  let next = 0;
  const worker = async () => {
    while (next < all.length) {
      const one = all[next++] as T;
      try {
        await act(one);
      } catch (error) {
        failed.push([one, error]);
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(AT_ONCE, all.length) }, worker));
  return failed;
}

export const tasksOf = (count: number) => (count === 1 ? "1 task" : `${count} tasks`);

/** Says how it went: `done` is a past participle such as "Moved". */
export function report(done: string, asked: number, failed: [unknown, unknown][], undo?: () => void) {
  const action = undo === undefined ? undefined : { label: "Undo", onClick: undo };
  const [first] = failed;
  if (first === undefined) return void toast.success(`${done} ${tasksOf(asked)}`, { action });
  const { title, hint } = described(first[1]);
  toast.error(`${done} ${asked - failed.length} of ${tasksOf(asked)}`, {
    description: [title, hint].filter(Boolean).join(" "),
    duration: 10_000,
  });
}
