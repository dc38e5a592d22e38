// Tells people that an agent needs one of them: in the title of the tab, by a message, and by a sound where it is wanted.
import { useEffect } from "react";
import { useNavigate } from "@tanstack/react-router";
import { toast } from "sonner";
import { api, take } from "../api/client";
import { onEvent } from "../api/live";
import { setWaiting } from "../shell/title";
import { plainText } from "../ui/format";

export const SOUND = "coffer.sound";

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

/** Says which task needs somebody, and why. One whose title cannot be had is announced without it. */
async function announce(task: string, why: string, look: (task: string) => void) {
  const title = await take(api.GET("/api/v1/tasks/{task}", { params: { path: { task } } })).then(
    (found) => plainText(found.title).slice(0, 100),
    () => undefined,
  );
  toast.warning(title === undefined ? "A task needs you" : `“${title}” needs you`, {
    description: plainText(why).slice(0, 200),
    duration: 30_000,
    action: { label: "Look", onClick: () => look(task) },
  });
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
      if (event.kind !== "task.needs_attention") return;
      const { attention } = (event.payload ?? {}) as { attention?: { code?: string; message?: string } | null };
      void announce(
        event.subject,
        attention?.message ?? attention?.code ?? "",
        (task) => void navigate({ to: "/tasks/$task", params: { task } }),
      );
      sound();
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
