import { useState, type FormEvent } from "react";
import { useMutation } from "@tanstack/react-query";
import { Play } from "lucide-react";
import { api, take, type Schemas } from "../api/client";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { ErrorBox } from "../ui/feedback";
import { TextField } from "../ui/fields";
import { duration, plainText } from "../ui/format";
import { Card } from "../ui/layout";

export function RunCommand({ id }: { id: string }) {
  const [command, setCommand] = useState("");
  const run = useMutation({
    mutationFn: async () => {
      const body = { command, max_output_bytes: 256 * 1024 };
      return (await take(
        api.POST("/api/v1/sandboxes/{id}/exec", { params: { path: { id } }, body }),
      )) as Schemas["Ran"];
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    run.mutate();
  };
  const ran = run.data;
  const text = (part: string) => part.split("\n").map(plainText).join("\n");
  return (
    <Card
      title="Run a command"
      actions={
        <CopyAs
          recipe={{
            python: `Sandbox.connect("${id}").commands.run(${JSON.stringify(command)})`,
            curl: curl("POST", `/api/v1/sandboxes/${id}/exec`, { command }),
          }}
        />
      }
    >
      <form onSubmit={submit} className="flex gap-2 p-4">
        <div className="min-w-0 flex-1">
          <TextField
            label="Command"
            hideLabel
            required
            className="font-mono"
            placeholder="make test"
            value={command}
            onChange={(event) => setCommand(event.target.value)}
          />
        </div>
        <Button type="submit" tone="primary" busy={run.isPending} icon={<Play aria-hidden className="size-4" />}>
          Run
        </Button>
      </form>
      {run.error !== null && <ErrorBox error={run.error} className="mx-4 mb-4" />}
      {ran !== undefined && (
        <div className="border-t border-line p-4" role="status">
          <p className="mb-2 flex items-center gap-2">
            {ran.timed_out ? (
              <Badge tone="bad">timed out</Badge>
            ) : (
              <Badge tone={ran.exit_code === 0 ? "ok" : "bad"}>exit {ran.exit_code}</Badge>
            )}
            <span className="text-dim">{duration(ran.duration_ms)}</span>
          </p>
          <pre
            tabIndex={0}
            aria-label="Output"
            className="max-h-80 overflow-auto rounded-md bg-raised p-3 font-mono text-xs whitespace-pre-wrap"
          >
            {text(ran.stdout)}
            {ran.stderr !== "" && <span className="text-bad">{text(ran.stderr)}</span>}
            {(ran.stdout_truncated || ran.stderr_truncated) && "\n[cut here; all of it is in the logs]"}
          </pre>
        </div>
      )}
    </Card>
  );
}
