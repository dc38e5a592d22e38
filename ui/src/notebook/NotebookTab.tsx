// The notebook of a sandbox: cells that run in its code interpreter.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { Link, useParams, useSearch } from "@tanstack/react-router";
import { Download, NotebookPen, Plus, RefreshCw, RotateCcw } from "lucide-react";
import { toast } from "sonner";
import { ApiError } from "../api/client";
import { useSandbox, type Sandbox } from "../api/sandboxes";
import { may } from "../api/session";
import { Awake } from "../sandbox/Asleep";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Confirm } from "../ui/Dialog";
import { Empty, ErrorBox, Loading, toastError } from "../ui/feedback";
import { CellCard } from "./CellCard";
import { LANGUAGES, type Cell } from "./cells";
import { ForkCell } from "./ForkCell";
import { addCell, contexts, exportNotebook, load, restart, useNotebook } from "./store";

const TEMPLATE = "code-interpreter-v1";

function NoInterpreter() {
  return (
    <Empty icon={<NotebookPen aria-hidden className="size-6" />} title="This sandbox has no code interpreter">
      <p>
        Notebooks run in sandboxes of the template <code className="font-mono">{TEMPLATE}</code>: Python with pandas and
        matplotlib, JavaScript, TypeScript, R, Bash and Java. State stays between cells, and E2B&apos;s{" "}
        <code className="font-mono">run_code</code> uses the same kernels.
      </p>
      <p>
        <Link
          to="/sandboxes"
          search={{ create: true, template: TEMPLATE }}
          className="font-medium text-accent underline"
        >
          Create a sandbox of it
        </Link>
      </p>
      <p className="text-xs">
        If the server does not have the template yet, its operator builds it once:{" "}
        <code className="font-mono">coffer template build {TEMPLATE}</code>
      </p>
    </Empty>
  );
}

function Restart({ id, languages, onClose }: { id: string; languages: string[]; onClose: () => void }) {
  const [language, setLanguage] = useState("");
  return (
    <Confirm
      open
      onClose={onClose}
      title="Restart contexts?"
      action="Restart"
      danger
      onConfirm={async () => {
        await restart(id, language === "" ? undefined : language);
        toast.success("Restarted; variables are gone");
      }}
    >
      <p>Variables, imports and what still runs in them are gone. Files and the cells here stay.</p>
      <label className="mt-3 flex items-center gap-2 text-ink">
        Language
        <select
          value={language}
          onChange={(event) => setLanguage(event.target.value)}
          className="h-8 rounded-md border border-line bg-surface px-2"
        >
          <option value="">all</option>
          {languages.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      </label>
    </Confirm>
  );
}

function Cells({ sandbox, why }: { sandbox: Sandbox; why?: string }) {
  const { id } = sandbox;
  const notebook = useNotebook(id);
  const [focused, setFocused] = useState<string>();
  const [forking, setForking] = useState<Cell>();
  const [restarting, setRestarting] = useState(false);
  const { from, until } = useSearch({ from: "/shell/sandboxes/$id/notebook" });
  const origin = from !== undefined && until !== undefined ? { from, until } : undefined;
  const record = useQuery({ queryKey: ["notebook", id, from, until], queryFn: () => load(id, origin), staleTime: 0 });
  if (notebook === undefined) {
    return record.error !== null ? (
      <ErrorBox error={record.error} retry={() => void record.refetch()} className="m-3 sm:m-5" />
    ) : (
      <Loading what="Reading the notebook" />
    );
  }
  // Where nothing can be run, there is nothing to write.
  const cells = notebook.cells.filter((cell) => why === undefined || cell.phase !== "new" || cell.source !== "");
  const ran = notebook.cells.filter((cell) => cell.execution !== undefined);
  const languages = LANGUAGES.filter((language) => ran.some((cell) => cell.language === language));
  return (
    <div className="mx-auto max-w-[1100px] space-y-3 p-3 sm:p-5">
      <div className="flex flex-wrap items-center gap-2">
        <Button why={why} onClick={() => setFocused(addCell(id))} icon={<Plus aria-hidden className="size-4" />}>
          Cell
        </Button>
        <Button why={why} onClick={() => setRestarting(true)} icon={<RotateCcw aria-hidden className="size-4" />}>
          Restart
        </Button>
        <Button
          onClick={() => void exportNotebook(id).catch(toastError)}
          disabled={ran.length === 0}
          icon={<Download aria-hidden className="size-4" />}
        >
          Export .ipynb
        </Button>
        <Button
          tone="ghost"
          aria-label="Load cells that ran elsewhere"
          title="Load cells that ran elsewhere"
          busy={record.isFetching}
          onClick={() => void record.refetch()}
          icon={<RefreshCw aria-hidden className="size-4" />}
        />
        <CopyAs
          recipe={{
            python: `from e2b_code_interpreter import Sandbox\nSandbox.connect("${id}").run_code("1 + 1")`,
            js: `import { Sandbox } from '@e2b/code-interpreter'\nawait (await Sandbox.connect('${id}')).runCode('1 + 1')`,
            curl: curl("POST", `/api/v1/sandboxes/${id}/code`, { code: "1 + 1" }),
          }}
        />
      </div>
      {record.error !== null && <ErrorBox error={record.error} retry={() => void record.refetch()} />}
      {cells.map((cell, at) => (
        <CellCard
          key={cell.key}
          id={id}
          cell={cell}
          number={at + 1}
          isLast={at === cells.length - 1}
          why={why}
          focus={cell.key === focused}
          onFocus={setFocused}
          onFork={setForking}
        />
      ))}
      {cells.length === 0 && (
        <Empty icon={<NotebookPen aria-hidden className="size-6" />} title="No cells">
          {why === undefined ? "Add one, write code in it, and run it with Shift+Enter." : "No cells have run here."}
        </Empty>
      )}
      {forking !== undefined && (
        <ForkCell
          id={id}
          cell={forking}
          later={ran.length - 1 - ran.findIndex((cell) => cell.key === forking.key)}
          onClose={() => setForking(undefined)}
        />
      )}
      {restarting && <Restart id={id} languages={languages} onClose={() => setRestarting(false)} />}
    </div>
  );
}

function isMissing(error: unknown): boolean {
  return error instanceof ApiError && error.code === "code_interpreter_missing";
}

function Interpreter({ sandbox }: { sandbox: Sandbox }) {
  const running = sandbox.state === "running";
  const query = useQuery({
    queryKey: ["code-contexts", sandbox.id],
    queryFn: () => contexts(sandbox.id),
    enabled: running,
    retry: (count, error) => count < 2 && !isMissing(error),
  });
  if (running && query.isPending) return <Loading what="Looking for the code interpreter" />;
  if (running && isMissing(query.error)) return <NoInterpreter />;
  if (running && query.error !== null) {
    return <ErrorBox error={query.error} retry={() => void query.refetch()} className="m-3 sm:m-5" />;
  }
  const why = !may("write") ? "Your key may only read" : undefined;
  return <Cells key={sandbox.id} sandbox={sandbox} why={running ? why : "The sandbox is not running"} />;
}

export function NotebookTab() {
  const { id } = useParams({ from: "/shell/sandboxes/$id" });
  const sandbox = useSandbox(id).data;
  if (sandbox === undefined) return null;
  return (
    <>
      {sandbox.state !== "running" && (
        <Awake sandbox={sandbox} what="Its kernels wait with their variables.">
          {null}
        </Awake>
      )}
      {sandbox.state !== "creating" && <Interpreter sandbox={sandbox} />}
    </>
  );
}
