import { useEffect, useState, type FormEvent } from "react";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { KeyRound } from "lucide-react";
import { session, whyEnded } from "../api/session";
import { signInWithKey, signInWithLink, takeLinkToken } from "../api/signIn";
import { Button } from "../ui/Button";
import { ErrorBox, Loading } from "../ui/feedback";
import { TextField } from "../ui/fields";

// Taken once, when the script runs: a link opens once, also where React draws things twice.
const linkToken = takeLinkToken();
let redeeming: Promise<void> | undefined;

export function SignIn() {
  const navigate = useNavigate();
  const { to } = useSearch({ from: "/sign-in" });
  const [key, setKey] = useState("");
  const [busy, setBusy] = useState(linkToken !== undefined && session() === undefined);
  const [error, setError] = useState<unknown>();

  useEffect(() => {
    const enter = () => void navigate({ href: to === undefined ? "/ui/" : `/ui${to}`, replace: true });
    if (session() !== undefined) return enter();
    if (linkToken === undefined || redeeming !== undefined) return;
    redeeming = signInWithLink(linkToken);
    redeeming.then(enter, setError).finally(() => setBusy(false));
  }, [navigate, to]);

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      await signInWithKey(key.trim());
      await navigate({ href: to === undefined ? "/ui/" : `/ui${to}`, replace: true });
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
              hint={
                <>
                  It is in the file <code className="font-mono">env</code> of the data directory. This tab keeps it
                  until you close it.
                </>
              }
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
          </>
        )}
      </form>
    </main>
  );
}
