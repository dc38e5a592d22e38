// Tests an agent before it is given work: does its program start, sign in and answer?
import { useState } from "react";
import { useMutation } from "@tanstack/react-query";
import { CircleCheck, CircleX } from "lucide-react";
import { api, take, type Schemas } from "../api/client";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { Dialog } from "../ui/Dialog";
import { ErrorBox, Loading } from "../ui/feedback";
import { duration, plainText } from "../ui/format";
import { Facts } from "../ui/layout";

type Agent = Schemas["Agent"];

function Result({ result }: { result: Schemas["AgentTest"] }) {
  const facts: [string, string][] = [
    ["Version", plainText(result.version ?? "") || "not said"],
    ["Model", plainText(result.model ?? "") || "not said"],
    ["Template", plainText(result.template)],
    ["Took", duration(result.took_ms)],
  ];
  return (
    <div role="status" className="space-y-2">
      {result.ok ? (
        <p className="flex items-center gap-2 font-medium text-ok">
          <CircleCheck aria-hidden className="size-5" /> It works
        </p>
      ) : (
        <p className="flex items-start gap-2 font-medium break-words text-bad">
          <CircleX aria-hidden className="mt-0.5 size-5 shrink-0" />
          {plainText(result.message ?? "It does not work.")}
        </p>
      )}
      {result.answer && <p className="break-words text-dim">It answered: {plainText(result.answer).slice(0, 500)}</p>}
      <div className="-mx-4">
        <Facts facts={facts} />
      </div>
    </div>
  );
}

interface Props {
  agent: Agent;
  onClose: () => void;
  /** It started, signed in and answered. */
  onTested?: () => void;
}

export function TestDialog({ agent, onClose, onTested }: Props) {
  const test = useMutation({
    mutationFn: () => take(api.POST("/api/v1/agents/{agent}/test", { params: { path: { agent: agent.id } } })),
    onSuccess: (result) => result.ok && onTested?.(),
  });
  return (
    <Dialog
      open
      onClose={onClose}
      title={`Test ${plainText(agent.name)}`}
      description="Starts a sandbox, asks the program for its version and for one word, and destroys the sandbox. Takes up to three minutes and costs what the model does."
    >
      <div className="space-y-4">
        {test.isPending && <Loading what="Waiting for its answer" />}
        {test.error !== null && <ErrorBox error={test.error} />}
        {test.data !== undefined && <Result result={test.data} />}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Close</Button>
          <Button tone="primary" busy={test.isPending} onClick={() => test.mutate()}>
            {test.data === undefined && test.error === null ? "Start the test" : "Test again"}
          </Button>
        </div>
      </div>
    </Dialog>
  );
}

export function TestAgent({ agent }: { agent: Agent }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <Button disabled={!may("write")} onClick={() => setOpen(true)}>
        Test it
      </Button>
      {open && <TestDialog agent={agent} onClose={() => setOpen(false)} />}
    </>
  );
}
