// Tells people of tasks that need them and of tasks that are ready for review: by a message, in the title of the tab, by a
// notification of the browser and by a sound if they chose those.
import { useEffect } from "react";
import { useNavigate } from "@tanstack/react-router";
import { toast } from "sonner";
import { api, take } from "../api/client";
import { onEvent, type Event } from "../api/live";
import { setWaiting } from "../shell/title";
import { plainText } from "../ui/format";

export const SOUND = "coffer.sound";
export const DESKTOP = "coffer.desktop";

function sound() {
  if (localStorage.getItem(SOUND) !== "yes") return;
  try {
    const audio = new AudioContext();
    const tone = audio.createOscillator();
    const volume = audio.createGain();
    volume.gain.setValueAtTime(0.08, audio.currentTime);
    volume.gain.exponentialRampToValueAtTime(0.001, audio.currentTime + 0.4);
    tone.frequency.value = 660;
    tone.connect(volume).connect(audio.destination);
    tone.start();
    tone.stop(audio.currentTime + 0.4);
    // A browser has few of them.
    tone.onended = () => void audio.close();
  } catch {
    // A browser that plays nothing before a click stays silent.
  }
}

export interface Notice {
  kind: "needs" | "ready";
  /** The task or the competition that it is about. */
  about: { task: string } | { fork: string };
  why: string;
}

/** What an event means for people, if anything. */
export function noticeOf(event: Pick<Event, "kind" | "subject" | "payload">): Notice | undefined {
  const payload = (event.payload ?? {}) as {
    attention?: { code?: string; message?: string } | null;
    to?: string;
    actor?: string | null;
    competition?: string;
  };
  if (event.kind === "task.needs_attention") {
    const why = payload.attention?.message ?? payload.attention?.code ?? "";
    return { kind: "needs", about: { task: event.subject }, why };
  }
  // A person who moves a card needs no message about it.
  if (event.kind === "task.moved" && payload.to === "in_review" && !payload.actor)
    return { kind: "ready", about: { task: event.subject }, why: "Its pull request is ready for review." };
  if (event.kind === "competition.state" && payload.to === "waiting")
    return { kind: "needs", about: { fork: payload.competition ?? event.subject }, why: "Pick the winner." };
  return undefined;
}

async function titleOf(about: Notice["about"]): Promise<string | undefined> {
  const found =
    "task" in about
      ? take(api.GET("/api/v1/tasks/{task}", { params: { path: about } }))
      : take(api.GET("/api/v1/sandboxes/fork/{fork}", { params: { path: about } }));
  return found.then(
    ({ title }) => plainText(title).slice(0, 100),
    () => undefined,
  );
}

/** Says which task, and why. If its title cannot be read, it is announced without one. */
async function announce({ kind, about, why }: Notice, open: () => void) {
  const title = await titleOf(about);
  const name = title === undefined ? "A task" : `“${title}”`;
  const head = kind === "needs" ? `${name} needs you` : `${name} is ready for review`;
  const description = plainText(why).slice(0, 200);
  const tell = kind === "needs" ? toast.warning : toast.success;
  tell(head, {
    description,
    duration: kind === "needs" ? 30_000 : 15_000,
    action: { label: "Open", onClick: open },
  });
  if (document.hidden && localStorage.getItem(DESKTOP) === "yes" && typeof Notification !== "undefined") {
    if (Notification.permission !== "granted") return;
    const notification = new Notification(head, {
      body: description,
      icon: "/ui/icon.svg",
      tag: JSON.stringify(about),
    });
    notification.onclick = () => {
      window.focus();
      open();
      notification.close();
    };
  }
}

export function Attention() {
  const navigate = useNavigate();
  useEffect(() => {
    let waiting = 0;
    const seen = () => {
      if (document.hidden) return;
      waiting = 0;
      setWaiting(0);
    };
    document.addEventListener("visibilitychange", seen);
    const off = onEvent((event) => {
      const notice = noticeOf(event);
      if (notice === undefined) return;
      const { about } = notice;
      void announce(
        notice,
        () =>
          void ("task" in about
            ? navigate({ to: "/tasks/$task", params: about })
            : navigate({ to: "/forks/$fork", params: about })),
      );
      if (notice.kind === "needs") sound();
      if (document.hidden) {
        waiting += 1;
        setWaiting(waiting);
      }
    });
    return () => {
      document.removeEventListener("visibilitychange", seen);
      off();
      setWaiting(0);
    };
  }, [navigate]);
  return null;
}
