// Every address of the UI. Pages are loaded when they are first opened; the frame and the list are there at once.
import {
  createRootRoute,
  createRoute,
  createRouter,
  lazyRouteComponent,
  Outlet,
  redirect,
} from "@tanstack/react-router";
import { session } from "./api/session";
import { exchangeStoredKey, linkToken, redeemLink } from "./api/signIn";
import { SandboxList } from "./pages/SandboxList";
import { SignIn } from "./pages/SignIn";
import { NotFound } from "./shell/NotFound";
import { Shell } from "./shell/Shell";
import { Crashed } from "./shell/Crashed";
import { viewOf, type BoardSearch } from "./tasks/search";

export type TaskTab = "conversation" | "changes" | "checks" | "terminal" | "details";
const TASK_TABS: TaskTab[] = ["conversation", "changes", "checks", "terminal", "details"];

export interface SandboxListSearch {
  show?: "ended" | "all";
  q?: string;
  /** Opens the form for a new one, with this template and volume. */
  create?: boolean;
  template?: string;
  volume?: string;
}

export interface LogSearchQuery {
  q?: string;
  level?: string;
  source?: string;
  from?: string;
  until?: string;
}

export interface AuditSearch {
  actor?: string;
  action?: string;
  subject?: string;
}

/** Those of an address that are text. A word of digits is read as a number, and is text all the same. */
function words<K extends string>(search: Record<string, unknown>, names: K[]): Partial<Record<K, string>> {
  const found = names.filter(
    (name) => (typeof search[name] === "string" && search[name] !== "") || typeof search[name] === "number",
  );
  return Object.fromEntries(found.map((name) => [name, String(search[name])])) as Partial<Record<K, string>>;
}

const AGAIN_MS = 1500;

/**
 * Loads a page, and waits if the server is away: a page that fails to load would make the router load the document anew, and
 * the browser show its own error in place of it. A file that is missing while the server answers is one of another version.
 */
function patient<T>(load: () => Promise<T>): () => Promise<T> {
  const attempt = async (): Promise<T> => {
    try {
      return await load();
    } catch (error) {
      if (await fetch("/ui/icon.svg", { cache: "no-store" }).then(Boolean, () => false)) throw error;
      await new Promise((done) => setTimeout(done, AGAIN_MS));
      return attempt();
    }
  };
  return attempt;
}

const root = createRootRoute({ component: Outlet, notFoundComponent: NotFound, errorComponent: Crashed });

const signIn = createRoute({
  getParentRoute: () => root,
  path: "/sign-in",
  component: SignIn,
  validateSearch: (search: Record<string, unknown>): { to?: string } =>
    // Only ever back into the UI: an address from elsewhere is dropped.
    typeof search.to === "string" && /^\/[a-z]/.test(search.to) ? { to: search.to } : {},
});

const shell = createRoute({
  getParentRoute: () => root,
  id: "shell",
  component: Shell,
  beforeLoad: async ({ location }) => {
    // A link that cannot be redeemed is explained on the page for signing in.
    if (linkToken !== undefined) await redeemLink()?.catch(() => undefined);
    await exchangeStoredKey();
    const to = location.href === "/" ? {} : { to: location.href };
    if (session() === undefined) throw redirect({ to: "/sign-in", search: to });
    // Other pages are about a project, and an operator has opened none.
    if (session()?.project === undefined && !["/", "/projects", "/monitoring"].includes(location.pathname))
      throw redirect({ to: "/projects" });
  },
});

const page = <P extends string>(path: P, load: () => Promise<Record<string, unknown>>, name: string) =>
  createRoute({
    getParentRoute: () => shell,
    path,
    component: lazyRouteComponent(patient(load as () => Promise<Record<string, never>>), name as never),
  });

const home = createRoute({
  getParentRoute: () => shell,
  path: "/",
  beforeLoad: () => {
    const operating = session()?.project === undefined;
    throw redirect({ to: operating ? "/projects" : "/board" });
  },
});

const sandboxes = createRoute({
  getParentRoute: () => shell,
  path: "/sandboxes",
  component: SandboxList,
  validateSearch: (search: Record<string, unknown>): SandboxListSearch => ({
    ...(search.show === "ended" || search.show === "all" ? { show: search.show } : {}),
    ...words(search, ["q", "template", "volume"]),
    ...(search.create === true ? { create: true } : {}),
  }),
});

const sandbox = createRoute({
  getParentRoute: () => shell,
  path: "/sandboxes/$id",
  component: lazyRouteComponent(
    patient(() => import("./pages/SandboxDetail")),
    "SandboxDetail",
  ),
});

const sandboxHome = createRoute({
  getParentRoute: () => sandbox,
  path: "/",
  component: lazyRouteComponent(
    patient(() => import("./sandbox/Overview")),
    "Overview",
  ),
});

const tab = <P extends string>(path: P, load: () => Promise<Record<string, unknown>>, name: string) =>
  createRoute({
    getParentRoute: () => sandbox,
    path,
    component: lazyRouteComponent(patient(load as () => Promise<Record<string, never>>), name as never),
  });

const files = createRoute({
  getParentRoute: () => sandbox,
  path: "files",
  component: lazyRouteComponent(
    patient(() => import("./sandbox/Files")),
    "Files",
  ),
  validateSearch: (search: Record<string, unknown>): { path?: string; open?: string } => ({
    ...(typeof search.path === "string" ? { path: search.path } : {}),
    ...(typeof search.open === "string" ? { open: search.open } : {}),
  }),
});

const notebook = createRoute({
  getParentRoute: () => sandbox,
  path: "notebook",
  component: lazyRouteComponent(() => import("./notebook/NotebookTab"), "NotebookTab"),
  // Of a fork: the sandbox that it came from, and the last cell that had run there.
  validateSearch: (search: Record<string, unknown>): { from?: string; until?: string } =>
    words(search, ["from", "until"]),
});

const board = createRoute({
  getParentRoute: () => shell,
  path: "/board",
  component: lazyRouteComponent(
    patient(() => import("./tasks/Board")),
    "Board",
  ),
  validateSearch: (search: Record<string, unknown>): BoardSearch => ({
    ...words(search, ["task", "q", "priority"]),
    ...viewOf(search),
  }),
});

const task = createRoute({
  getParentRoute: () => shell,
  path: "/tasks/$task",
  component: lazyRouteComponent(
    patient(() => import("./tasks/TaskPage")),
    "TaskPage",
  ),
  validateSearch: (search: Record<string, unknown>): { tab?: TaskTab } => {
    const tab = TASK_TABS.find((name) => name === search.tab);
    return tab === undefined || tab === "conversation" ? {} : { tab };
  },
});

const logs = createRoute({
  getParentRoute: () => shell,
  path: "/logs",
  component: lazyRouteComponent(
    patient(() => import("./pages/LogSearch")),
    "LogSearch",
  ),
  validateSearch: (search: Record<string, unknown>): LogSearchQuery =>
    words(search, ["q", "level", "source", "from", "until"]),
});

const audit = createRoute({
  getParentRoute: () => shell,
  path: "/audit",
  component: lazyRouteComponent(
    patient(() => import("./pages/Audit")),
    "Audit",
  ),
  validateSearch: (search: Record<string, unknown>): AuditSearch => words(search, ["actor", "action", "subject"]),
});

const fork = createRoute({
  getParentRoute: () => shell,
  path: "/forks/$fork",
  component: lazyRouteComponent(
    patient(() => import("./forks/CompetitionPage")),
    "CompetitionPage",
  ),
});

const repository = createRoute({
  getParentRoute: () => shell,
  path: "/repositories/$repository",
  component: lazyRouteComponent(
    patient(() => import("./repositories/Repository")),
    "Repository",
  ),
});

const pull = createRoute({
  getParentRoute: () => shell,
  path: "/repositories/$repository/pulls/$number",
  component: lazyRouteComponent(
    patient(() => import("./repositories/PullPage")),
    "PullPage",
  ),
});

const templates = createRoute({
  getParentRoute: () => shell,
  path: "/templates",
  component: lazyRouteComponent(
    patient(() => import("./templates/Templates")),
    "Templates",
  ),
  validateSearch: (search: Record<string, unknown>): { q?: string } => words(search, ["q"]),
});

const newTemplate = createRoute({
  getParentRoute: () => shell,
  path: "/templates/new",
  component: lazyRouteComponent(
    patient(() => import("./templates/NewTemplate")),
    "NewTemplate",
  ),
  validateSearch: (search: Record<string, unknown>): { line?: number } =>
    typeof search.line === "number" ? { line: search.line } : {},
});

const template = createRoute({
  getParentRoute: () => shell,
  path: "/templates/$template",
  component: lazyRouteComponent(
    patient(() => import("./templates/TemplatePage")),
    "TemplatePage",
  ),
});

const build = createRoute({
  getParentRoute: () => shell,
  path: "/templates/$template/builds/$build",
  component: lazyRouteComponent(
    patient(() => import("./templates/BuildPage")),
    "BuildPage",
  ),
});

const volume = createRoute({
  getParentRoute: () => shell,
  path: "/volumes/$volume",
  component: lazyRouteComponent(
    patient(() => import("./volumes/VolumePage")),
    "VolumePage",
  ),
});

const tree = root.addChildren([
  signIn,
  shell.addChildren([
    home,
    sandboxes,
    sandbox.addChildren([
      sandboxHome,
      tab("terminal", () => import("./terminal/TerminalTab"), "TerminalTab"),
      notebook,
      files,
      tab("processes", () => import("./sandbox/Processes"), "Processes"),
      tab("logs", () => import("./sandbox/Logs"), "Logs"),
      tab("network", () => import("./sandbox/Network"), "Network"),
      tab("snapshots", () => import("./sandbox/Snapshots"), "Snapshots"),
      tab("events", () => import("./sandbox/History"), "History"),
    ]),
    board,
    task,
    page("/forks", () => import("./forks/Forks"), "Forks"),
    fork,
    page("/repositories", () => import("./repositories/Repositories"), "Repositories"),
    repository,
    pull,
    templates,
    newTemplate,
    template,
    build,
    page("/volumes", () => import("./volumes/Volumes"), "Volumes"),
    volume,
    page("/monitoring", () => import("./pages/Monitoring"), "Monitoring"),
    audit,
    logs,
    page("/projects", () => import("./pages/Projects"), "Projects"),
    page("/settings", () => import("./settings/ProjectSettings"), "ProjectSettings"),
    page("/settings/people", () => import("./settings/People"), "People"),
    page("/settings/keys", () => import("./settings/Keys"), "Keys"),
    page("/settings/agents", () => import("./settings/Agents"), "Agents"),
    page("/settings/secrets", () => import("./settings/Secrets"), "Secrets"),
    page("/settings/budgets", () => import("./settings/Budgets"), "Budgets"),
    page("/settings/schedules", () => import("./settings/Schedules"), "Schedules"),
    page("/settings/webhooks", () => import("./settings/Webhooks"), "Webhooks"),
    page("/settings/connections", () => import("./settings/Connections"), "Connections"),
    page("/settings/policy", () => import("./settings/CommandPolicy"), "CommandPolicy"),
  ]),
]);

export const router = createRouter({
  routeTree: tree,
  basepath: "/ui",
  defaultPreload: "intent",
  scrollRestoration: true,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
