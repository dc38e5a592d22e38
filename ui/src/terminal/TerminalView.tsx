// A terminal on the page: xterm.js around a `Pty`.
import "@xterm/xterm/css/xterm.css";
import { useEffect, useRef, useState } from "react";
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import { LoaderCircle } from "lucide-react";
import { useDark } from "../shell/theme";
import { Button } from "../ui/Button";
import { Pty, type PtyState } from "./pty";

const DARK = {
  background: "#14181f",
  foreground: "#e8ecf1",
  cursor: "#57c7bc",
  selectionBackground: "#2f5a57",
  black: "#2c343f",
  brightBlack: "#7d8896",
};
const LIGHT = {
  background: "#ffffff",
  foreground: "#151a21",
  cursor: "#0f6b66",
  selectionBackground: "#bfe3df",
  black: "#151a21",
  red: "#b3202a",
  green: "#17692f",
  yellow: "#7d5000",
  blue: "#1d5aa8",
  magenta: "#86309a",
  cyan: "#0f6b66",
  white: "#535d6b",
  brightBlack: "#535d6b",
  brightRed: "#c92a35",
  brightGreen: "#1d7f3a",
  brightYellow: "#8f5c00",
  brightBlue: "#2567be",
  brightMagenta: "#9a3bb0",
  brightCyan: "#147c76",
  brightWhite: "#151a21",
};

/** What may wait to be drawn; beyond it the sandbox waits. */
const MOST_PENDING = 1 << 20;

/** Links that a program prints may say one thing and lead to another, so the real address is shown first. */
function openLink(_: MouseEvent, address: string) {
  let url: URL;
  try {
    url = new URL(address);
  } catch {
    return;
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") return;
  if (confirm(`Open this address, which came from the sandbox?\n\n${url.href}`)) {
    open(url.href, "_blank", "noopener,noreferrer");
  }
}

/** No browser and no program in a terminal takes Ctrl+Shift+Enter; Shift+Esc is Chrome's own on some systems. */
function leaves(event: KeyboardEvent): boolean {
  return event.shiftKey && (event.key === "Escape" || (event.key === "Enter" && event.ctrlKey));
}

interface Props {
  sandbox: string;
  tag: string;
  pid?: number;
  visible: boolean;
  readable: boolean;
  onTitle: (title: string) => void;
  onPid: (pid: number) => void;
  onPty: (pty: Pty) => void;
  onLeave: () => void;
}

export function TerminalView({ sandbox, tag, pid, visible, readable, onTitle, onPid, onPty, onLeave }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const dark = useDark();
  const [state, setState] = useState<PtyState>({ name: "starting" });
  const made = useRef<{ terminal: Terminal; pty: Pty; fit: () => void }>(undefined);
  const callbacks = useRef({ onTitle, onPid, onPty, onLeave });
  callbacks.current = { onTitle, onPid, onPty, onLeave };

  useEffect(() => {
    const place = box.current as HTMLDivElement;
    const terminal = new Terminal({
      fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--font-mono") || "monospace",
      fontSize: 13,
      scrollback: 10_000,
      cursorBlink: true,
      // Programs choose colours for a background that they do not know.
      minimumContrastRatio: 4.5,
      allowProposedApi: false,
      linkHandler: { activate: openLink, allowNonHttpProtocols: false },
    });
    const addon = new FitAddon();
    terminal.loadAddon(addon);
    terminal.open(place);
    terminal.textarea?.setAttribute("aria-label", "Terminal; Ctrl+Shift+Enter leaves it");
    let pending = 0;
    const notice = (text: string) => terminal.write(`\r\n\x1b[7m ${text} \x1b[0m\r\n`);
    const pty = new Pty(
      sandbox,
      tag,
      {
        data: (bytes) => {
          pending += bytes.length;
          const written = new Promise<void>((done) =>
            terminal.write(bytes, () => {
              pending -= bytes.length;
              done();
            }),
          );
          return pending > MOST_PENDING ? written : undefined;
        },
        gap: (missing) => notice(`${missing} bytes of output are no longer available`),
        lost: (bytes, why) =>
          notice(
            why === "away"
              ? `${bytes} bytes of input were not sent, or only in part: the connection broke`
              : `${bytes} bytes of input were not sent: a terminal takes 1 MiB at a time; upload it as a file`,
          ),
        state: (next) => {
          setState(next);
          if (next.name === "live" && pty.pid !== undefined) callbacks.current.onPid(pty.pid);
        },
      },
      pid,
    );
    const encoder = new TextEncoder();
    terminal.onData((text) => pty.send(encoder.encode(text)));
    terminal.onBinary((text) => pty.send(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
    terminal.onTitleChange((title) => callbacks.current.onTitle(title));
    terminal.attachCustomKeyEventHandler((event) => {
      // The terminal takes every key, Tab too, so there must be a way out of it; and the palette is everywhere.
      if (event.type === "keydown" && leaves(event)) {
        event.preventDefault();
        callbacks.current.onLeave();
        return false;
      }
      const copies = (event.ctrlKey || event.metaKey) && event.shiftKey && event.code === "KeyC";
      if (event.type === "keydown" && copies && terminal.hasSelection()) {
        event.preventDefault();
        void navigator.clipboard?.writeText(terminal.getSelection());
        return false;
      }
      return true;
    });
    const fit = () => {
      if (place.offsetParent === null) return;
      addon.fit();
      pty.resize(terminal.cols, terminal.rows);
    };
    const watcher = new ResizeObserver(fit);
    watcher.observe(place);
    made.current = { terminal, pty, fit };
    callbacks.current.onPty(pty);
    return () => {
      watcher.disconnect();
      pty.detach();
      terminal.dispose();
      made.current = undefined;
    };
    // A terminal is made once; what changes later is told to it below.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [sandbox, tag]);

  useEffect(() => {
    const { terminal } = made.current ?? {};
    if (terminal !== undefined) terminal.options.theme = dark ? DARK : LIGHT;
  }, [dark]);

  useEffect(() => {
    const { terminal } = made.current ?? {};
    if (terminal !== undefined) terminal.options.screenReaderMode = readable;
  }, [readable]);

  // Only the terminal that is looked at holds a connection: browsers open six to a server, over all tabs.
  useEffect(() => {
    const current = made.current;
    if (current === undefined) return;
    let later: ReturnType<typeof setTimeout> | undefined;
    const follow = () => {
      clearTimeout(later);
      if (visible && !document.hidden) {
        current.fit();
        current.pty.attach();
      } else {
        later = setTimeout(() => current.pty.detach(), visible ? 10_000 : 0);
      }
    };
    follow();
    if (visible) current.terminal.focus();
    document.addEventListener("visibilitychange", follow);
    return () => {
      clearTimeout(later);
      document.removeEventListener("visibilitychange", follow);
    };
  }, [visible]);

  return (
    <div className={visible ? "relative min-h-0 flex-1" : "hidden"} data-terminal={state.name}>
      <div ref={box} className="absolute inset-0 bg-white dark:bg-surface" />
      <div role="status" className="pointer-events-none absolute inset-x-0 top-2 flex justify-center">
        {(state.name === "starting" || (state.name === "reconnecting" && (state.attempt > 0 || pid === undefined))) && (
          <span className="flex items-center gap-2 rounded-full border border-line bg-raised px-3 py-1 text-sm shadow">
            <LoaderCircle aria-hidden className="size-3.5 animate-spin" />
            {state.name === "starting" ? "Starting a shell…" : "Reconnecting; the shell goes on meanwhile…"}
          </span>
        )}
        {(state.name === "ended" || state.name === "failed") && (
          <span className="pointer-events-auto flex items-center gap-3 rounded-lg border border-line bg-raised px-3 py-1.5 text-sm shadow">
            {state.text}
            {state.name === "failed" && <Button onClick={() => made.current?.pty.attach()}>Retry</Button>}
          </span>
        )}
      </div>
    </div>
  );
}
