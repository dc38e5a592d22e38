import { Button } from "../ui/Button";
import { ErrorBox } from "../ui/feedback";

/** The last resort: a page that could not be drawn, or a part of another version that could not be loaded. */
export function Crashed({ error }: { error: unknown }) {
  return (
    <main className="mx-auto max-w-xl space-y-4 p-8">
      <ErrorBox error={error} />
      <Button onClick={() => location.reload()}>Load the page again</Button>
    </main>
  );
}
