// What of the board is shown, and how: filters, board or list, order, groups, and views saved under a name.
import { useState, type FormEvent } from "react";
import { DropdownMenu } from "radix-ui";
import { Bookmark, Check, LayoutList, SlidersHorizontal, SquareKanban, Trash2 } from "lucide-react";
import { copyText } from "../ui/CopyAs";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { Dialog } from "../ui/Dialog";
import { SelectField, TextField } from "../ui/fields";
import { plainText } from "../ui/format";
import { useTyped } from "../ui/typed";
import { sameView, useSavedViews } from "./savedViews";
import { PRIORITIES } from "./tasks";
import { GROUPS, SORTS, viewIn, type BoardSearch, type Group, type Sort } from "./view";

const ITEM = "flex items-center gap-2 rounded-md px-2 py-1.5 outline-none data-[highlighted]:bg-raised";
const MENU = "z-50 w-64 rounded-lg border border-line bg-surface p-1 shadow-lg";

interface Props {
  search: BoardSearch;
  look: (next: BoardSearch) => void;
  /** Shows this view and nothing of the one before. */
  open: (view: BoardSearch) => void;
}

function SaveDialog({ onClose, onSave }: { onClose: () => void; onSave: (name: string) => void }) {
  const [name, setName] = useState("");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onSave(name.trim());
    onClose();
  };
  return (
    <Dialog
      open
      onClose={onClose}
      title="Save this view"
      description="Saved in this browser. To share it, copy its link: the address holds the whole view."
      dirty={name !== ""}
    >
      <form onSubmit={submit} className="space-y-4">
        <TextField
          label="Name"
          required
          autoFocus
          maxLength={60}
          value={name}
          onChange={(event) => setName(event.target.value)}
        />
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" disabled={name.trim() === ""}>
            Save
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

function Views({ search, open }: Pick<Props, "search" | "open">) {
  const { views, save, forget } = useSavedViews();
  const [saving, setSaving] = useState(false);
  const current = views.find((one) => sameView(one.search, search));
  return (
    <>
      <DropdownMenu.Root>
        <DropdownMenu.Trigger asChild>
          <Button icon={<Bookmark aria-hidden className="size-4" />}>
            <span className="max-w-32 truncate">{current === undefined ? "Views" : plainText(current.name)}</span>
          </Button>
        </DropdownMenu.Trigger>
        <DropdownMenu.Portal>
          <DropdownMenu.Content align="end" className={MENU}>
            <DropdownMenu.Item className={ITEM} onSelect={() => open({})}>
              <span className="min-w-0 flex-1">All tasks</span>
              {sameView(search, {}) && <Check aria-hidden className="size-4" />}
            </DropdownMenu.Item>
            {views.map((view) => (
              <DropdownMenu.Item key={view.name} className={ITEM} onSelect={() => open(view.search)}>
                <span className="min-w-0 flex-1 truncate">{plainText(view.name)}</span>
                {view === current && <Check aria-hidden className="size-4" />}
              </DropdownMenu.Item>
            ))}
            <DropdownMenu.Separator className="my-1 h-px bg-line" />
            <DropdownMenu.Item className={ITEM} onSelect={() => setSaving(true)}>
              Save this view…
            </DropdownMenu.Item>
            <DropdownMenu.Item
              className={ITEM}
              onSelect={() => {
                // Without the task that is open on top of it.
                const address = new URL(location.href);
                for (const name of ["task", "new"]) address.searchParams.delete(name);
                void copyText(address.href, "a link to this view");
              }}
            >
              Copy its link
            </DropdownMenu.Item>
            {current !== undefined && (
              <DropdownMenu.Item className={ITEM} onSelect={() => forget(current.name)}>
                <Trash2 aria-hidden className="size-4" />
                Delete “{plainText(current.name)}”
              </DropdownMenu.Item>
            )}
          </DropdownMenu.Content>
        </DropdownMenu.Portal>
      </DropdownMenu.Root>
      {saving && <SaveDialog onClose={() => setSaving(false)} onSave={(name) => save(name, viewIn(search))} />}
    </>
  );
}

function Display({ search, look }: Pick<Props, "search" | "look">) {
  const { list = false, sort, group, wip, all = false } = search;
  const label = "mb-1 block text-xs text-dim";
  const changed = sort !== undefined || group !== undefined || wip !== undefined || all;
  return (
    <DropdownMenu.Root>
      <DropdownMenu.Trigger asChild>
        <Button
          icon={<SlidersHorizontal aria-hidden className="size-4" />}
          className={changed ? "text-accent" : undefined}
        >
          Display
        </Button>
      </DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content align="end" className={MENU}>
          <DropdownMenu.Label className={classes(label, "px-2 pt-1")}>Sort by</DropdownMenu.Label>
          <DropdownMenu.RadioGroup
            value={sort ?? ""}
            onValueChange={(value) => look({ sort: (value || undefined) as Sort | undefined })}
          >
            {[["", "Manual order"], ...Object.entries(SORTS)].map(([value, name]) => (
              <Radio key={value} value={value ?? ""} name={name ?? ""} />
            ))}
          </DropdownMenu.RadioGroup>
          {list && (
            <>
              <DropdownMenu.Separator className="my-1 h-px bg-line" />
              <DropdownMenu.Label className={classes(label, "px-2 pt-1")}>Group by</DropdownMenu.Label>
              <DropdownMenu.RadioGroup
                value={group ?? ""}
                onValueChange={(value) => look({ group: (value || undefined) as Group | undefined })}
              >
                {[["", "State"], ...Object.entries(GROUPS)].map(([value, name]) => (
                  <Radio key={value} value={value ?? ""} name={name ?? ""} />
                ))}
              </DropdownMenu.RadioGroup>
            </>
          )}
          <DropdownMenu.Separator className="my-1 h-px bg-line" />
          <DropdownMenu.CheckboxItem
            checked={all}
            onCheckedChange={(on) => look({ all: on || undefined })}
            onSelect={(event) => event.preventDefault()}
            className={ITEM}
          >
            <span className="min-w-0 flex-1">Backlog and cancelled</span>
            {all && <Check aria-hidden className="size-4" />}
          </DropdownMenu.CheckboxItem>
          {!list && (
            <>
              <DropdownMenu.Separator className="my-1 h-px bg-line" />
              <DropdownMenu.Label className={classes(label, "px-2 pt-1")}>Most tasks in progress</DropdownMenu.Label>
              <DropdownMenu.RadioGroup
                className="flex gap-1 px-1 pb-1"
                value={String(wip ?? "")}
                onValueChange={(value) => look({ wip: value === "" ? undefined : Number(value) })}
              >
                {["", "2", "3", "5", "8"].map((value) => (
                  <DropdownMenu.RadioItem
                    key={value}
                    value={value}
                    onSelect={(event) => event.preventDefault()}
                    className="flex-1 rounded-md border border-line px-2 py-1 text-center outline-none data-[highlighted]:bg-raised data-[state=checked]:border-accent data-[state=checked]:text-accent"
                  >
                    {value === "" ? "Any" : value}
                  </DropdownMenu.RadioItem>
                ))}
              </DropdownMenu.RadioGroup>
            </>
          )}
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}

function Radio({ value, name }: { value: string; name: string }) {
  return (
    <DropdownMenu.RadioItem value={value} className={ITEM} onSelect={(event) => event.preventDefault()}>
      <span className="min-w-0 flex-1">{name}</span>
      <DropdownMenu.ItemIndicator>
        <Check aria-hidden className="size-4" />
      </DropdownMenu.ItemIndicator>
    </DropdownMenu.RadioItem>
  );
}

const LAYOUT =
  "inline-flex h-8 w-9 items-center justify-center text-dim hover:text-ink aria-pressed:bg-accent-soft aria-pressed:text-accent";

export function ViewBar({ search, look, open }: Props) {
  const { q = "", priority = "", waiting = false, list = false } = search;
  const [text, setText] = useTyped(q, (typed) => look({ q: typed || undefined }));
  return (
    <div className="flex flex-wrap items-center gap-2">
      <div className="min-w-40 flex-1 sm:max-w-xs">
        <TextField
          label="Filter"
          hideLabel
          type="search"
          placeholder="Filter by title, label, agent"
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
      </div>
      <SelectField
        label="Priority"
        hideLabel
        value={priority}
        onChange={(event) => look({ priority: event.target.value || undefined })}
      >
        <option value="">Every priority</option>
        {PRIORITIES.map((one) => (
          <option key={one}>{one}</option>
        ))}
      </SelectField>
      <Button
        aria-pressed={waiting}
        className={waiting ? "text-accent" : undefined}
        onClick={() => look({ waiting: !waiting || undefined })}
      >
        Needs you
      </Button>
      <div className="hidden flex-1 sm:block" />
      <div role="group" aria-label="Layout" className="flex overflow-hidden rounded-md border border-line bg-surface">
        <button
          type="button"
          aria-pressed={!list}
          aria-label="Board"
          title="Board"
          className={LAYOUT}
          onClick={() => look({ list: undefined })}
        >
          <SquareKanban aria-hidden className="size-4" />
        </button>
        <button
          type="button"
          aria-pressed={list}
          aria-label="List"
          title="List"
          className={classes(LAYOUT, "border-l border-line")}
          onClick={() => look({ list: true })}
        >
          <LayoutList aria-hidden className="size-4" />
        </button>
      </div>
      <Display search={search} look={look} />
      <Views search={search} open={open} />
    </div>
  );
}
