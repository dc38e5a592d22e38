import { useEffect, useState, type FormEvent } from "react";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { KeyRound } from "lucide-react";
import { onSession, session, whyEnded } from "../api/session";
import { linkToken, redeemLink, signInWithKey } from "../api/signIn";
import { Button } from "../ui/Button";
import { ErrorBox, Loading } from "../ui/feedback";
import { TextField } from "../ui/fields";

export function SignIn() {
  const navigate = useNavigate();
  const { to } = useSearch({ from: "/sign-in" });
  const [key, setKey] = useState("");
  const [busy, setBusy] = useState(linkToken !== undefined && session() === undefined);
  const [error, setError] = useState<unknown>();

  useEffect(() => {
    const enter = () => void navigate({ href: to === undefined ? "/ui/" : `/ui${to}`, replace: true });
    if (session() !== undefined) return enter();
    redeemLink()
      ?.then(enter, setError)
      .finally(() => setBusy(false));
    // Another tab may sign in while this page is open.
    return onSession(() => session() !== undefined && enter());
  }, [navigate, to]);

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      await signInWithKey(key.trim());
    } catch (refused) {
      setError(refused);
    } finally {
      setBusy(false);
    }
  };

  const ended = whyEnded();
  return (
    <main className="flex min-h-dvh items-center justify-center p-4">
      <form
        onSubmit={(event) => void submit(event)}
        className="w-full max-w-sm space-y-5 rounded-xl border border-line bg-surface p-6"
      >
        <div className="flex items-center gap-3">
          <img src="/ui/icon.svg" alt="" className="size-9" />
          <div>
            <h1 className="text-lg font-semibold">Sign in to Cofferdam</h1>
            <p className="text-sm text-dim">With a key of your project, or the operator's.</p>
          </div>
        </div>
        {busy && linkToken !== undefined && key === "" ? (
          <Loading what="Opening the link" />
        ) : (
          <>
            {ended !== undefined && error === undefined && (
              <p role="status" className="rounded-md bg-warn-soft px-3 py-2 text-warn">
                {ended}
              </p>
            )}
            <TextField
              label="API key"
              type="password"
              autoFocus
              required
              value={key}
              onChange={(event) => setKey(event.target.value)}
              placeholder="e2b_…"
              autoComplete="current-password"
            />
            {error !== undefined && <ErrorBox error={error} />}
            <Button
              type="submit"
              tone="primary"
              busy={busy}
              className="w-full"
              icon={<KeyRound aria-hidden className="size-4" />}
            >
              Sign in
            </Button>
            <details className="text-sm text-dim">
              <summary>Where do I get a key?</summary>
              <p className="mt-2">
                Ask an admin of the project for a sign-in link (Settings, People), or for a key (Settings, Keys). If you
                started the server, run <code className="font-mono">coffer open</code>, or take the key from the file{" "}
                <code className="font-mono">env</code> in its data directory.
              </p>
            </details>
          </>
        )}
      </form>
    </main>
  );
}
