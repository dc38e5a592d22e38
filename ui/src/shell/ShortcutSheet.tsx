import { Dialog } from "../ui/Dialog";
import { PLACES_BY_KEY } from "./keys";

const GROUPS: [string, [string[], string][]][] = [
  [
    "Everywhere",
    [
      [["Ctrl", "K"], "Find anything, run actions"],
      [["c"], "New task"],
      [["/"], "Filter this page, or find"],
      [["j"], "Next row or card"],
      [["k"], "Previous row or card"],
      [["Enter"], "Open it"],
      [["Ctrl", "Enter"], "Send the form"],
      [["Esc"], "Close"],
      [["?"], "This sheet"],
    ],
  ],
  [
    "A task",
    [
      [["s"], "Start or retry"],
      [["e"], "Edit"],
      [["n"], "Next changed file"],
      [["p"], "Previous changed file"],
    ],
  ],
  [
    "A task on the board",
    [
      [["x"], "Select it"],
      [["Shift", "x"], "Select all up to it"],
      [["Space"], "Pick it up, put it down"],
      [["←", "→", "↑", "↓"], "Move it"],
    ],
  ],
  ["A terminal", [[["Ctrl", "Shift", "Enter"], "Leave it"]]],
];

function Key({ name }: { name: string }) {
  return (
    <kbd className="inline-block min-w-5 rounded border border-line bg-raised px-1.5 text-center font-sans text-xs">
      {name}
    </kbd>
  );
}

export function ShortcutSheet({ onClose }: { onClose: () => void }) {
  const go: [string[], string][] = Object.entries(PLACES_BY_KEY).map(([key, [, name]]) => [["g", key], name]);
  return (
    <Dialog open onClose={onClose} title="Keyboard shortcuts" wide>
      <div className="gap-x-8 sm:columns-2">
        {[...GROUPS, ["Go to", go] as (typeof GROUPS)[number]].map(([title, keys]) => (
          <section key={title} className="mb-4 break-inside-avoid">
            <h3 className="mb-1 font-medium">{title}</h3>
            <dl className="space-y-1">
              {keys.map(([names, what]) => (
                <div key={what} className="flex items-center justify-between gap-3">
                  <dt className="text-dim">{what}</dt>
                  <dd className="flex gap-1">
                    {names.map((name) => (
                      <Key key={name} name={name} />
                    ))}
                  </dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
    </Dialog>
  );
}
