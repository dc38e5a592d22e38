// Keys that work on every page. Fields, editors and terminals take all keys for themselves.

/** Where `g` and a letter lead. */
export const PLACES_BY_KEY: Record<string, [string, string]> = {
  b: ["/board", "Board"],
  s: ["/sandboxes", "Sandboxes"],
  f: ["/forks", "Forks"],
  t: ["/templates", "Templates"],
  v: ["/volumes", "Volumes"],
  r: ["/repositories", "Repositories"],
  m: ["/monitoring", "Monitoring"],
  l: ["/logs", "Logs"],
  a: ["/audit", "Audit"],
  ",": ["/settings", "Settings"],
};

export interface Keys {
  go: (to: string) => void;
  newTask: () => void;
  palette: () => void;
  sheet: () => void;
}

const SECOND_MS = 1500;
const ROWS = "[data-row]";

function takesKeys(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || target.closest("input, textarea, select, [data-terminal], .cm-editor") !== null;
}

/** Where keys act: the topmost dialog if there is one, else the page. */
function scope(): ParentNode | null {
  return [...document.querySelectorAll("[role=dialog]")].at(-1) ?? document.getElementById("content");
}

function moveFocus(step: 1 | -1) {
  const rows = [...(scope()?.querySelectorAll<HTMLElement>(ROWS) ?? [])];
  const at = rows.findIndex((row) => row === document.activeElement || row.contains(document.activeElement));
  const next = at === -1 ? rows[step === 1 ? 0 : rows.length - 1] : rows[at + step];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

/** Listens until the returned function is called. */
export function listenForKeys(keys: Keys): () => void {
  let went = 0;
  const onKey = (event: KeyboardEvent) => {
    const withControl = event.metaKey || event.ctrlKey;
    if (event.key.toLowerCase() === "k" && withControl && !event.shiftKey) {
      event.preventDefault();
      // It leads elsewhere, and what is typed would be lost.
      if (document.querySelector("[data-typed]") === null) keys.palette();
      return;
    }
    if (event.key === "Enter" && withControl && event.target instanceof HTMLTextAreaElement) {
      const { form } = event.target;
      if (form === null) return;
      event.preventDefault();
      return form.requestSubmit();
    }
    if (withControl || event.altKey || event.defaultPrevented || takesKeys(event.target)) return;
    const afterG = Date.now() - went < SECOND_MS;
    went = 0;
    const inDialog = document.querySelector("[role=dialog], [role=menu]") !== null;
    const place = afterG ? PLACES_BY_KEY[event.key] : undefined;
    const act =
      place !== undefined && !inDialog
        ? () => keys.go(place[0])
        : {
            j: () => moveFocus(1),
            k: () => moveFocus(-1),
            ...(inDialog
              ? {}
              : {
                  g: () => {
                    went = Date.now();
                  },
                  c: keys.newTask,
                  "?": keys.sheet,
                  "/": () => {
                    const field = scope()?.querySelector<HTMLElement>("input[type=search]");
                    if (field instanceof HTMLElement) field.focus();
                    else keys.palette();
                  },
                }),
          }[event.key];
    const button =
      act === undefined && /^[a-z]$/.test(event.key)
        ? scope()?.querySelector<HTMLElement>(`[data-key=${event.key}]`)
        : undefined;
    if (act === undefined && !(button instanceof HTMLElement)) return;
    event.preventDefault();
    if (act !== undefined) act();
    else button?.click();
  };
  addEventListener("keydown", onKey);
  return () => removeEventListener("keydown", onKey);
}
