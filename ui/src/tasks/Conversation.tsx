// The work on a task as a conversation: what people said, what the agent said and did, turn by turn. The raw output is behind a switch.
import { useState } from "react";
import { SelectField, Switch, TextField } from "../ui/fields";
import { ErrorBox, Loading } from "../ui/feedback";
import { Card } from "../ui/layout";
import { newestTodos } from "../transcript/entries";
import { Thread } from "../transcript/Thread";
import { Todos } from "../transcript/Todos";
import { useTranscript } from "../transcript/useTranscript";
import { turnsOf, useExecutions } from "../work/executions";
import { Tail } from "../work/Tail";
import type { Attempt } from "./AttemptCard";
import { Composer, Waiting } from "./Messages";
import { Wanted } from "./TaskParts";
import type { Task } from "./tasks";

function Plan({ items }: { items: { text: string; state: string }[] }) {
  if (items.length === 0) return null;
  const done = items.filter((item) => item.state === "done").length;
  return (
    <Card title={`Plan: ${done} of ${items.length}`}>
      <div aria-hidden className="h-1 bg-raised">
        <div className="h-full bg-ok" style={{ width: `${(100 * done) / items.length}%` }} />
      </div>
      <div className="p-4">
        <Todos items={items} />
      </div>
    </Card>
  );
}

/** What an agent wrote, byte for byte, for any turn of any attempt. */
export function RawOutput({ attempts }: { attempts: Attempt[] }) {
  const [number, setNumber] = useState<number>();
  const [turn, setTurn] = useState<string>();
  const attempt = attempts.find((one) => one.number === number) ?? attempts[0];
  const executions = useExecutions(attempt?.sandbox_id);
  const turns = turnsOf(executions.data?.items ?? [], attempt?.execution_id);
  const execution = turns.find(({ id }) => id === turn)?.id ?? attempt?.execution_id;
  if (attempt === undefined) return <p className="p-4 text-dim">No attempts yet.</p>;
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <div className="flex flex-wrap gap-2 p-2">
        <SelectField
          label="Attempt"
          hideLabel
          value={attempt.number}
          onChange={(event) => {
            setNumber(Number(event.target.value));
            setTurn(undefined);
          }}
        >
          {attempts.map((one) => (
            <option key={one.number} value={one.number}>
              Attempt {one.number}
            </option>
          ))}
        </SelectField>
        {turns.length > 1 && (
          <SelectField label="Turn" hideLabel value={execution ?? ""} onChange={(event) => setTurn(event.target.value)}>
            {turns.map(({ id }, at) => (
              <option key={id} value={id}>
                Turn {at + 1}
              </option>
            ))}
          </SelectField>
        )}
      </div>
      {execution ? (
        <Tail
          key={execution}
          execution={execution}
          label={`Output of attempt ${attempt.number}`}
          className="min-h-40 flex-1"
        />
      ) : (
        <p className="p-4 text-dim">The agent has not started.</p>
      )}
    </div>
  );
}

export function Conversation({ task, attempts, working }: { task: Task; attempts: Attempt[]; working: boolean }) {
  const [isRaw, setRaw] = useState(false);
  const [search, setSearch] = useState("");
  const transcript = useTranscript(`/api/v1/tasks/${task.id}/transcript`, working);
  // A server that keeps no transcripts still has the output.
  const raw = isRaw || transcript.state === "missing";
  return (
    <div className="grid min-h-0 flex-1 gap-4 xl:grid-cols-[minmax(0,1fr)_300px]">
      <Card className="flex min-h-[26rem] flex-col xl:min-h-0">
        <div className="flex flex-wrap items-center gap-2 border-b border-line px-3 py-1.5">
          <div className="min-w-32 flex-1 sm:max-w-64">
            <TextField
              label="Search the conversation"
              hideLabel
              type="search"
              placeholder="Search"
              value={search}
              disabled={raw}
              onChange={(event) => setSearch(event.target.value)}
            />
          </div>
          <span className="flex-1" />
          <Switch label="Raw output" checked={raw} disabled={transcript.state === "missing"} onChange={setRaw} />
        </div>
        {raw ? (
          <RawOutput attempts={attempts} />
        ) : transcript.state === "loading" ? (
          <Loading />
        ) : transcript.state === "failed" ? (
          <ErrorBox error={transcript.error} className="m-4" />
        ) : (
          <Thread transcript={transcript} label="Conversation" search={search} className="flex-1" />
        )}
        <Waiting task={task} />
        <Composer task={task} working={working} />
      </Card>
      <div className="min-w-0 space-y-4 xl:overflow-y-auto">
        <Plan items={newestTodos(transcript.entries)} />
        <Wanted task={task} />
      </div>
    </div>
  );
}
