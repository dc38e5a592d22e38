// Views that a person saved under a name, in this browser and by project. A view is an address, so its link works everywhere.
import { useSyncExternalStore } from "react";
import { session } from "../api/session";
import { viewIn, viewOf, type BoardSearch } from "./view";

export interface SavedView {
  name: string;
  search: BoardSearch;
}

const MOST = 30;
const watchers = new Set<() => void>();
const place = () => `coffer.views.${session()?.project?.projectId ?? "none"}`;

/** What was stored may be of another version, or of another hand: what is no view is left out. */
export function readViews(text: string | null): SavedView[] {
  try {
    const stored: unknown = JSON.parse(text ?? "[]");
    if (!Array.isArray(stored)) return [];
    return stored
      .filter((one): one is { name: string; search: Record<string, unknown> } => {
        const { name, search } = (one ?? {}) as Record<string, unknown>;
        return typeof name === "string" && name !== "" && typeof search === "object" && search !== null;
      })
      .slice(0, MOST)
      .map(({ name, search }) => ({ name, search: { ...texts(search), ...viewOf(search) } }));
  } catch {
    return [];
  }
}

function texts({ q, priority }: Record<string, unknown>): BoardSearch {
  return {
    ...(typeof q === "string" ? { q } : {}),
    ...(typeof priority === "string" ? { priority } : {}),
  };
}

/** The views with this one, in place of one of its name. */
export function withView(views: SavedView[], name: string, search: BoardSearch): SavedView[] {
  return [...views.filter((one) => one.name !== name), { name, search: viewIn(search) }].slice(-MOST);
}

export const sameView = (a: BoardSearch, b: BoardSearch) => {
  const text = (search: BoardSearch) =>
    JSON.stringify(
      Object.entries(viewIn(search))
        .filter(([, value]) => value !== undefined)
        .sort(),
    );
  return text(a) === text(b);
};

function write(views: SavedView[]) {
  try {
    localStorage.setItem(place(), JSON.stringify(views));
  } catch {
    // A browser that stores nothing has no saved views.
  }
  for (const watcher of watchers) watcher();
}

function stored(): string | null {
  try {
    return localStorage.getItem(place());
  } catch {
    return null;
  }
}

export function useSavedViews() {
  const text = useSyncExternalStore((watcher) => {
    watchers.add(watcher);
    addEventListener("storage", watcher);
    return () => {
      watchers.delete(watcher);
      removeEventListener("storage", watcher);
    };
  }, stored);
  const views = readViews(text);
  return {
    views,
    save: (name: string, search: BoardSearch) => write(withView(views, name, search)),
    forget: (name: string) => write(views.filter((one) => one.name !== name)),
  };
}
