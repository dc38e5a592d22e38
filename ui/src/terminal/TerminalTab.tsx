// The terminals of a sandbox. Shells outlive the page: those of an earlier visit are found again by their tag.
import { useEffect, useRef, useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { Ear, Plus, X } from "lucide-react";
import { api, take } from "../api/client";
import { useSandbox } from "../api/sandboxes";
import { may } from "../api/session";
import { Awake } from "../sandbox/Asleep";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { CopyAs, curl } from "../ui/CopyAs";
import { Empty, Loaded, toastError } from "../ui/feedback";
import { plainText } from "../ui/format";
import type { Pty } from "./pty";
import { TerminalView } from "./TerminalView";

const MARK = "web-terminal-";

interface Shell {
  tag: string;
  pid?: number;
  title?: string;
}

function newTag(): string {
  return `${MARK}${Date.now().toString(36)}${crypto.getRandomValues(new Uint16Array(1))[0]?.toString(36) ?? ""}`;
}

export function TerminalTab() {
  const { id } = useParams({ from: "/shell/sandboxes/$id" });
  return <SandboxTerminals id={id} />;
}

export function SandboxTerminals({ id }: { id: string }) {
  const sandbox = useSandbox(id).data;
  if (sandbox === undefined) return null;
  if (!may("write")) return <Empty title="Your key may only look">A terminal needs a key with the role write.</Empty>;
  return (
    <Awake sandbox={sandbox} what="Terminals need a running sandbox; its shells go on when it does.">
      <Found id={id} />
    </Awake>
  );
}

function Found({ id }: { id: string }) {
  const query = useQuery({
    queryKey: ["terminals", id],
    queryFn: () =>
      take(api.GET("/api/v1/sandboxes/{id}/processes", { params: { path: { id }, query: { watch: true } } })),
    staleTime: 0,
    gcTime: 0,
    refetchOnMount: "always",
  });
  return (
    <Loaded query={query} what="Looking for open terminals">
      {(processes) => {
        const open = processes.items.filter((process) => process.tag?.startsWith(MARK));
        const shells = open.map((process): Shell => ({ tag: process.tag ?? "", pid: process.pid }));
        return <Terminals key={id} id={id} first={shells.length > 0 ? shells : [{ tag: newTag() }]} />;
      }}
    </Loaded>
  );
}

function Terminals({ id, first }: { id: string; first: Shell[] }) {
  const [shells, setShells] = useState(first);
  const [chosen, setChosen] = useState(first[0]?.tag ?? "");
  const [readable, setReadable] = useState(() => localStorage.getItem("coffer.readable-terminal") === "yes");
  const ptys = useRef(new Map<string, Pty>());
  const tabs = useRef<HTMLDivElement>(null);

  const add = () => {
    const tag = newTag();
    setShells((all) => [...all, { tag }]);
    setChosen(tag);
  };
  const close = (tag: string) => {
    const pty = ptys.current.get(tag);
    ptys.current.delete(tag);
    if (pty !== undefined && pty.state.name !== "ended") pty.kill().catch(toastError);
    setShells((all) => all.filter((shell) => shell.tag !== tag));
    if (chosen === tag) setChosen(shells.find((shell) => shell.tag !== tag)?.tag ?? "");
  };
  const change = (tag: string, next: Partial<Shell>) =>
    setShells((all) => all.map((shell) => (shell.tag === tag ? { ...shell, ...next } : shell)));

  useEffect(() => localStorage.setItem("coffer.readable-terminal", readable ? "yes" : "no"), [readable]);

  return (
    <div className="flex h-full min-h-0 flex-col">
      <div ref={tabs} className="flex h-10 shrink-0 items-center gap-1 border-b border-line bg-surface px-2">
        <div className="flex min-w-0 items-center gap-1 overflow-x-auto">
          {shells.map((shell, at) => (
            <div
              key={shell.tag}
              className={classes(
                "flex h-7 shrink-0 items-center rounded-md text-sm",
                shell.tag === chosen ? "bg-accent-soft text-accent" : "text-dim hover:bg-raised",
              )}
            >
              <button
                type="button"
                aria-pressed={shell.tag === chosen}
                onClick={() => setChosen(shell.tag)}
                className="max-w-44 truncate px-2.5 py-1"
              >
                {shell.title ?? `Shell ${at + 1}`}
              </button>
              <button
                type="button"
                aria-label={`End ${shell.title ?? `shell ${at + 1}`}`}
                onClick={() => close(shell.tag)}
                className="mr-1 rounded p-0.5 hover:bg-raised"
              >
                <X aria-hidden className="size-3.5" />
              </button>
            </div>
          ))}
        </div>
        <Button tone="ghost" aria-label="New terminal" onClick={add} icon={<Plus aria-hidden className="size-4" />} />
        <div className="flex-1" />
        <span className="hidden text-xs text-dim lg:inline">Ctrl+Shift+Enter leaves the terminal</span>
        <Button
          tone="ghost"
          aria-pressed={readable}
          className={readable ? "text-accent" : undefined}
          aria-label="Screen reader mode"
          title="Screen reader mode"
          onClick={() => setReadable(!readable)}
          icon={<Ear aria-hidden className="size-4" />}
        />
        <CopyAs
          recipe={{
            cli: `e2b sandbox connect ${id}`,
            python: `from e2b import Sandbox\nSandbox.connect("${id}").commands.run("uname -a").stdout`,
            curl: curl("POST", `/api/v1/sandboxes/${id}/exec`, { command: "uname -a" }),
          }}
        />
      </div>
      {shells.length === 0 && (
        <Empty title="No terminal is open">
          <Button tone="primary" onClick={add}>
            New terminal
          </Button>
        </Empty>
      )}
      {shells.map((shell) => (
        <TerminalView
          key={shell.tag}
          sandbox={id}
          tag={shell.tag}
          pid={shell.pid}
          visible={shell.tag === chosen}
          readable={readable}
          onPty={(pty) => ptys.current.set(shell.tag, pty)}
          onPid={(pid) => shell.pid !== pid && change(shell.tag, { pid })}
          onTitle={(title) => change(shell.tag, { title: plainText(title).slice(0, 60) || undefined })}
          onLeave={() => tabs.current?.querySelector<HTMLElement>("button[aria-pressed='true']")?.focus()}
        />
      ))}
    </div>
  );
}
