import { useSyncExternalStore } from "react";

export type Theme = "light" | "dark" | "system";

const PLACE = "coffer.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

function stored(): Theme {
  try {
    const choice = localStorage.getItem(PLACE);
    return choice === "light" || choice === "dark" ? choice : "system";
  } catch {
    return "system";
  }
}

let theme = stored();

export function isDark(): boolean {
  return theme === "dark" || (theme === "system" && system.matches);
}

function apply() {
  document.documentElement.classList.toggle("dark", isDark());
  for (const listener of listeners) listener();
}

export function setTheme(next: Theme) {
  theme = next;
  try {
    if (next === "system") localStorage.removeItem(PLACE);
    else localStorage.setItem(PLACE, next);
  } catch {
    // It holds for this page then.
  }
  apply();
}

system.addEventListener("change", apply);
// Another tab's choice is ours too.
addEventListener("storage", (event) => {
  if (event.key !== PLACE) return;
  theme = stored();
  apply();
});

function subscribe(listener: () => void) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useTheme(): Theme {
  return useSyncExternalStore(subscribe, () => theme);
}

export function useDark(): boolean {
  return useSyncExternalStore(subscribe, isDark);
}
