// What can be done with a sandbox, each with the command that does the same.
import { useState, type FormEvent } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Clock, Pause, Play, Trash2 } from "lucide-react";
import { toast } from "sonner";
import { api, take } from "../api/client";
import type { Sandbox } from "../api/sandboxes";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Confirm, Dialog } from "../ui/Dialog";
import { ErrorBox, toastError } from "../ui/feedback";
import { SelectField } from "../ui/fields";
import { nameOf } from "./naming";

export function useResume(id: string) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: () => take(api.POST("/api/v1/sandboxes/{id}/resume", { params: { path: { id } }, body: null })),
    onSuccess: (sandbox) => queries.setQueryData(["sandbox", id], sandbox),
    onError: toastError,
  });
}

function usePause(id: string) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: () => take(api.POST("/api/v1/sandboxes/{id}/pause", { params: { path: { id } }, body: null })),
    onSuccess: (sandbox) => queries.setQueryData(["sandbox", id], sandbox),
    onError: toastError,
  });
}

function Extend({ sandbox, onClose }: { sandbox: Sandbox; onClose: () => void }) {
  const queries = useQueryClient();
  const [seconds, setSeconds] = useState("3600");
  const extend = useMutation({
    mutationFn: () =>
      take(
        api.POST("/api/v1/sandboxes/{id}/timeout", {
          params: { path: { id: sandbox.id } },
          body: { timeout_s: Number(seconds) },
        }),
      ),
    onSuccess: (next) => {
      queries.setQueryData(["sandbox", sandbox.id], next);
      toast.success("Extended");
      onClose();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    extend.mutate();
  };
  const recipe = {
    python: `from e2b import Sandbox\nSandbox.connect("${sandbox.id}").set_timeout(${seconds})`,
    curl: curl("POST", `/api/v1/sandboxes/${sandbox.id}/timeout`, { timeout_s: Number(seconds) }),
  };
  return (
    <Dialog open onClose={onClose} title="Extend">
      <form onSubmit={submit} className="space-y-4">
        <SelectField label="Keep it running for" value={seconds} onChange={(event) => setSeconds(event.target.value)}>
          <option value="300">5 minutes</option>
          <option value="1800">30 minutes</option>
          <option value="3600">1 hour</option>
          <option value="14400">4 hours</option>
          <option value="43200">12 hours</option>
        </SelectField>
        {extend.error !== null && <ErrorBox error={extend.error} />}
        <div className="flex justify-end gap-2">
          <CopyAs recipe={recipe} />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={extend.isPending}>
            Extend
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

export function Actions({ sandbox }: { sandbox: Sandbox }) {
  const { id, state } = sandbox;
  const queries = useQueryClient();
  const pause = usePause(id);
  const resume = useResume(id);
  const [extending, setExtending] = useState(false);
  const [destroying, setDestroying] = useState(false);
  const over = state === "terminated" || state === "error";
  const allowed = may("write");
  const recipe = {
    cli: `e2b sandbox connect ${id}`,
    python: `from e2b import Sandbox\nsandbox = Sandbox.connect("${id}")`,
    curl:
      state === "paused"
        ? curl("POST", `/api/v1/sandboxes/${id}/resume`)
        : curl("POST", `/api/v1/sandboxes/${id}/exec`, { command: "uname -a" }),
  };
  return (
    <div className="flex flex-wrap items-center gap-2">
      {state === "running" && (
        <>
          <Button
            onClick={() => setExtending(true)}
            disabled={!allowed}
            icon={<Clock aria-hidden className="size-4" />}
          >
            Extend
          </Button>
          <Button
            onClick={() => pause.mutate()}
            busy={pause.isPending}
            disabled={!allowed}
            icon={<Pause aria-hidden className="size-4" />}
          >
            Pause
          </Button>
        </>
      )}
      {state === "paused" && (
        <Button
          tone="primary"
          onClick={() => resume.mutate()}
          busy={resume.isPending}
          disabled={!allowed}
          icon={<Play aria-hidden className="size-4" />}
        >
          Resume
        </Button>
      )}
      {!over && (
        <Button
          tone="quiet-danger"
          onClick={() => setDestroying(true)}
          disabled={!allowed}
          icon={<Trash2 aria-hidden className="size-4" />}
        >
          Destroy
        </Button>
      )}
      {!over && <CopyAs recipe={recipe} />}
      {extending && <Extend sandbox={sandbox} onClose={() => setExtending(false)} />}
      <Confirm
        open={destroying}
        onClose={() => setDestroying(false)}
        title={`Destroy ${nameOf(sandbox)}?`}
        action="Destroy"
        danger
        onConfirm={async () => {
          await take(api.DELETE("/api/v1/sandboxes/{id}", { params: { path: { id } } }));
          await queries.invalidateQueries({ queryKey: ["sandbox", id] });
          toast.success("Sandbox destroyed");
        }}
      >
        Its processes end and its files are gone. This cannot be undone. Its logs and history stay.
      </Confirm>
    </div>
  );
}
