// Picks what a sandbox starts from: a template of the project or the server, or a named snapshot; by a few letters.
import { useId, useState } from "react";
import { Command } from "cmdk";
import { Popover } from "radix-ui";
import { Check, ChevronsUpDown } from "lucide-react";
import { classes } from "../ui/classes";
import { plainText } from "../ui/format";
import { useChoices } from "./choices";

const ITEM =
  "flex cursor-pointer items-center gap-2 rounded-md px-2 py-1.5 data-[selected=true]:bg-accent-soft data-[selected=true]:text-accent";

interface Props {
  label: string;
  /** Empty for the default. */
  value: string;
  onChange: (name: string) => void;
}

export function TemplatePicker({ label, value, onChange }: Props) {
  const id = useId();
  const [open, setOpen] = useState(false);
  const [typed, setTyped] = useState("");
  const { groups, fallback, isPending, error } = useChoices();
  const shown = value === "" ? (fallback === undefined ? "The default" : `${fallback} (default)`) : plainText(value);
  const known = groups.some(({ choices }) => choices.some(({ name }) => name === typed.trim()));
  const pick = (name: string) => {
    onChange(name);
    setTyped("");
    setOpen(false);
  };
  return (
    <div className="min-w-0 space-y-1">
      <span id={`${id}-label`} className="block text-sm font-medium">
        {label}
      </span>
      <Popover.Root open={open} onOpenChange={setOpen} modal>
        <Popover.Trigger
          aria-labelledby={`${id}-label ${id}-value`}
          className="flex h-8 w-full items-center justify-between gap-2 rounded-md border border-line bg-surface px-2.5 text-left text-sm"
        >
          <span id={`${id}-value`} className="truncate">
            {shown}
          </span>
          <ChevronsUpDown aria-hidden className="size-4 shrink-0 text-dim" />
        </Popover.Trigger>
        <Popover.Portal>
          <Popover.Content
            align="start"
            sideOffset={4}
            collisionPadding={8}
            aria-label="Templates"
            className="z-60 w-(--radix-popover-trigger-width) min-w-64 overflow-hidden rounded-lg border border-line bg-surface shadow-lg"
          >
            <Command label="Templates">
              <Command.Input
                autoFocus
                value={typed}
                onValueChange={setTyped}
                placeholder="Find by name"
                className="w-full border-b border-line bg-transparent px-3 py-2 text-sm outline-none placeholder:text-dim"
              />
              <Command.List className="max-h-64 overflow-y-auto p-1 [&_[cmdk-group-heading]]:px-2 [&_[cmdk-group-heading]]:py-1 [&_[cmdk-group-heading]]:text-xs [&_[cmdk-group-heading]]:text-dim">
                <Command.Empty className="px-3 py-4 text-center text-sm text-dim">
                  {isPending ? "Loading templates…" : error !== null ? "Templates could not be loaded." : "No match."}
                </Command.Empty>
                {groups.map(({ heading, choices }) => (
                  <Command.Group key={heading} heading={heading}>
                    {choices.map(({ name, note, isDefault }) => (
                      <Command.Item
                        key={name}
                        value={`${heading} ${name}`}
                        keywords={[name]}
                        className={ITEM}
                        onSelect={() => pick(isDefault ? "" : name)}
                      >
                        <Check
                          aria-hidden
                          className={classes(
                            "size-4 shrink-0",
                            (isDefault ? value === "" : value === name) ? "" : "invisible",
                          )}
                        />
                        <span className="min-w-0 flex-1 truncate font-mono text-[13px]">{plainText(name)}</span>
                        <span className="shrink-0 text-xs text-dim">{note}</span>
                      </Command.Item>
                    ))}
                  </Command.Group>
                ))}
                {typed.trim() !== "" && !known && (
                  <Command.Item forceMount value={`use ${typed}`} className={ITEM} onSelect={() => pick(typed.trim())}>
                    <span className="size-4 shrink-0" />
                    <span className="truncate">
                      Use <span className="font-mono text-[13px]">{plainText(typed.trim())}</span>
                    </span>
                  </Command.Item>
                )}
              </Command.List>
            </Command>
          </Popover.Content>
        </Popover.Portal>
      </Popover.Root>
    </div>
  );
}
