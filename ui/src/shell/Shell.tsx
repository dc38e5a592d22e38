// The frame around every page: navigation, who is signed in, whether the page is live, the command palette.
import { lazy, Suspense, useEffect, useState } from "react";
import { Link, Outlet, useNavigate, useRouterState } from "@tanstack/react-router";
import { Dialog as Radix } from "radix-ui";
import {
  Activity,
  Box,
  FolderGit2,
  FolderKanban,
  GitFork,
  HardDrive,
  Layers,
  Menu,
  ScrollText,
  Search,
  Settings,
  ShieldCheck,
  SquareKanban,
  WifiOff,
} from "lucide-react";
import { Toaster } from "sonner";
import { useConnection } from "../api/live";
import { useSession } from "../api/session";
import { Attention } from "../tasks/Attention";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { Account } from "./Account";
import { listenForKeys } from "./keys";
import { ProjectSwitcher } from "./ProjectSwitcher";
import { useDark } from "./theme";

const Palette = lazy(() => import("./Palette").then((module) => ({ default: module.Palette })));
const ShortcutSheet = lazy(() => import("./ShortcutSheet").then((module) => ({ default: module.ShortcutSheet })));

const PLACES = [
  { to: "/board", name: "Board", icon: SquareKanban },
  { to: "/sandboxes", name: "Sandboxes", icon: Box },
  { to: "/forks", name: "Forks", icon: GitFork },
  { to: "/templates", name: "Templates", icon: Layers },
  { to: "/volumes", name: "Volumes", icon: HardDrive },
  { to: "/repositories", name: "Repositories", icon: FolderGit2 },
  { to: "/monitoring", name: "Monitoring", icon: Activity },
  { to: "/logs", name: "Logs", icon: ScrollText },
  { to: "/audit", name: "Audit", icon: ShieldCheck },
  { to: "/settings", name: "Settings", icon: Settings },
] as const;

function Places({ onGo }: { onGo?: () => void }) {
  const { operating = false, project } = useSession() ?? {};
  const link =
    "flex h-8 items-center gap-2.5 rounded-md px-2.5 text-sm text-dim hover:bg-raised hover:text-ink data-[status=active]:bg-accent-soft data-[status=active]:font-medium data-[status=active]:text-accent";
  return (
    <nav aria-label="Main" className="flex flex-col gap-0.5 p-2" onClick={onGo}>
      {operating && (
        <Link to="/projects" className={link}>
          <FolderKanban aria-hidden className="size-4" />
          Projects
        </Link>
      )}
      {PLACES.filter(({ to }) => project !== undefined || to === "/monitoring").map(({ to, name, icon: Icon }) => (
        <Link key={to} to={to} className={link}>
          <Icon aria-hidden className="size-4" />
          {name}
        </Link>
      ))}
    </nav>
  );
}

/** Says that the server is away, once it has been for a moment. */
function Away() {
  const away = useConnection() === "away";
  const [shown, setShown] = useState(false);
  useEffect(() => {
    if (!away) return setShown(false);
    const timer = setTimeout(() => setShown(true), 1500);
    return () => clearTimeout(timer);
  }, [away]);
  return (
    <div role="status">
      {shown && (
        <div className="flex items-center justify-center gap-2 bg-warn-soft px-3 py-1.5 text-sm text-warn">
          <WifiOff aria-hidden className="size-4" />
          The server does not answer. Reconnecting; what you see may be out of date.
        </div>
      )}
    </div>
  );
}

export function Shell() {
  const session = useSession();
  const navigate = useNavigate();
  const path = useRouterState({ select: (state) => state.location.pathname });
  const dark = useDark();
  const [menu, setMenu] = useState(false);
  const [palette, setPalette] = useState(false);
  const [sheet, setSheet] = useState(false);

  useEffect(() => {
    if (session !== undefined || path === "/sign-in") return;
    void navigate({ to: "/sign-in", search: path === "/" ? {} : { to: path } });
  }, [session, navigate, path]);

  useEffect(
    () =>
      listenForKeys({
        go: (to) => void navigate({ to }),
        newTask: () => void navigate({ to: "/board", search: { new: true } }),
        palette: () => setPalette((open) => !open),
        sheet: () => setSheet(true),
      }),
    [navigate],
  );

  if (session === undefined) return null;
  const project = session.project?.projectId ?? "none";
  return (
    <div className="flex h-dvh flex-col">
      <a
        href="#content"
        className="sr-only focus:not-sr-only focus:absolute focus:z-50 focus:m-2 focus:rounded focus:bg-surface focus:p-2"
      >
        Skip to the content
      </a>
      <header className="flex h-12 shrink-0 items-center gap-2 border-b border-line bg-surface px-2 sm:px-3">
        <Button
          tone="ghost"
          className="md:hidden"
          aria-label="Open the menu"
          onClick={() => setMenu(true)}
          icon={<Menu aria-hidden className="size-5" />}
        />
        <Link to="/" className="flex items-center gap-2 font-semibold">
          <img src="/ui/icon.svg" alt="" className="size-6" />
          <span className="sr-only sm:not-sr-only">Cofferdam</span>
        </Link>
        <ProjectSwitcher />
        <div className="flex-1" />
        <Button onClick={() => setPalette(true)} className="text-dim" aria-keyshortcuts="Control+K">
          <Search aria-hidden className="size-4" />
          <span className="sr-only sm:not-sr-only">Find or do</span>
          <kbd aria-hidden className="hidden rounded border border-line px-1 text-[11px] sm:inline">
            Ctrl K
          </kbd>
        </Button>
        <Account onShortcuts={() => setSheet(true)} />
      </header>
      <Away />
      <Attention key={`attention of ${project}`} />
      <div className="flex min-h-0 flex-1">
        <aside className="hidden w-48 shrink-0 border-r border-line bg-surface md:block">
          <Places />
        </aside>
        {/* Positioned, or what is absolute inside (text for screen readers) would make the document as long as this scrolls. */}
        <main id="content" tabIndex={-1} className="relative min-w-0 flex-1 overflow-y-auto outline-none">
          {/* What was asked of one project is nothing of the next: pages begin anew. */}
          <Suspense key={project}>
            <Outlet />
          </Suspense>
        </main>
      </div>
      <Radix.Root open={menu} onOpenChange={setMenu}>
        <Radix.Portal>
          <Radix.Overlay className="fixed inset-0 z-40 bg-black/50" />
          <Radix.Content
            aria-describedby={undefined}
            className={classes("fixed inset-y-0 left-0 z-50 w-64 border-r border-line bg-surface p-2")}
          >
            <Radix.Title className="px-2.5 py-2 font-semibold">Cofferdam</Radix.Title>
            <Places onGo={() => setMenu(false)} />
          </Radix.Content>
        </Radix.Portal>
      </Radix.Root>
      <Suspense>
        {palette && <Palette onClose={() => setPalette(false)} onShortcuts={() => setSheet(true)} />}
        {sheet && <ShortcutSheet onClose={() => setSheet(false)} />}
      </Suspense>
      <Toaster theme={dark ? "dark" : "light"} position="bottom-right" closeButton />
    </div>
  );
}
