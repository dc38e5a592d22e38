// One file: a picture, or text in an editor.
import { useEffect, useRef, useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { Compartment, EditorState } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { ArrowLeft, Download, Save } from "lucide-react";
import { toast } from "sonner";
import { download, readFile, writeFile } from "../api/files";
import { may } from "../api/session";
import { useDark } from "../shell/theme";
import { Button } from "../ui/Button";
import { Empty, Loaded, toastError } from "../ui/feedback";
import { plainText } from "../ui/format";

function Editor({ text, editable, path, onChange, onSave }: { text: string; editable: boolean; path: string; onChange: (text: string) => void; onSave: () => void }) {
  const box = useRef<HTMLDivElement>(null);
  const dark = useDark();
  const theme = useRef(new Compartment());
  const view = useRef<EditorView>(undefined);
  const callbacks = useRef({ onChange, onSave });
  callbacks.current = { onChange, onSave };
  useEffect(() => {
    const save = () => {
      callbacks.current.onSave();
      return true;
    };
    const made = new EditorView({
      parent: box.current as HTMLDivElement,
      state: EditorState.create({
        doc: text,
        extensions: [
          lineNumbers(),
          history(),
          drawSelection(),
          highlightActiveLine(),
          search({ top: true }),
          highlightSelectionMatches(),
          EditorState.readOnly.of(!editable),
          EditorView.contentAttributes.of({ "aria-label": `Contents of ${plainText(path)}` }),
          theme.current.of(EditorView.theme({}, { dark: false })),
          keymap.of([{ key: "Mod-s", run: save, preventDefault: true }, indentWithTab, ...searchKeymap, ...historyKeymap, ...defaultKeymap]),
          EditorView.updateListener.of((update) => update.docChanged && callbacks.current.onChange(update.state.doc.toString())),
        ],
      }),
    });
    view.current = made;
    return () => made.destroy();
    // Another file is another editor (by its key); the text of this one is its own once it is open.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [editable, path]);
  useEffect(() => {
    view.current?.dispatch({ effects: theme.current.reconfigure(EditorView.theme({}, { dark })) });
  }, [dark]);
  return <div ref={box} className="min-h-0 flex-1 overflow-hidden" />;
}

export function FileView({ id, path, onClose }: { id: string; path: string; onClose: () => void }) {
  const queries = useQueryClient();
  const query = useQuery({ queryKey: ["content", id, path], queryFn: () => readFile(id, path), staleTime: 0, gcTime: 0 });
  const [draft, setDraft] = useState<string>();
  const save = useMutation({
    mutationFn: (text: string) => writeFile(id, path, text),
    onSuccess: (_, text) => {
      setDraft((now) => (now === text ? undefined : now));
      toast.success("Saved");
      void queries.invalidateQueries({ queryKey: ["files", id] });
    },
    onError: toastError,
  });
  const content = query.data;
  useEffect(() => {
    if (content?.kind !== "picture") return;
    return () => URL.revokeObjectURL(content.address);
  }, [content]);
  useEffect(() => {
    if (draft === undefined) return;
    const ask = (event: BeforeUnloadEvent) => event.preventDefault();
    addEventListener("beforeunload", ask);
    return () => removeEventListener("beforeunload", ask);
  }, [draft]);
  const editable = content?.kind === "text" && content.whole && may("write");
  const store = () => draft !== undefined && save.mutate(draft);
  const leave = () => {
    if (draft === undefined || confirm("Leave without saving?")) onClose();
  };
  return (
    <div className="flex h-full min-h-0 flex-col">
      <div className="flex flex-wrap items-center gap-2 border-b border-line bg-surface px-3 py-2">
        <Button tone="ghost" aria-label="Back to the directory" onClick={leave} icon={<ArrowLeft aria-hidden className="size-4" />} />
        <h2 className="min-w-0 flex-1 truncate font-mono">{plainText(path)}</h2>
        {draft !== undefined && <span className="text-dim">changed</span>}
        <Button onClick={() => void download(id, path).catch(toastError)} icon={<Download aria-hidden className="size-4" />}>
          Download
        </Button>
        {editable && (
          <Button tone="primary" disabled={draft === undefined} busy={save.isPending} onClick={store} icon={<Save aria-hidden className="size-4" />}>
            Save
          </Button>
        )}
      </div>
      <Loaded query={query} what="Opening">
        {(shown) =>
          shown.kind === "text" ? (
            <>
              {!shown.whole && <p className="bg-warn-soft px-4 py-1.5 text-warn">The first MiB is shown. Download the file for all of it.</p>}
              <Editor key={path} text={shown.text} editable={editable} path={path} onChange={setDraft} onSave={store} />
            </>
          ) : shown.kind === "picture" ? (
            <div className="min-h-0 flex-1 overflow-auto p-4">
              <img src={shown.address} alt={plainText(path)} className="max-w-full" />
            </div>
          ) : (
            <Empty title="This is not text">Download it to look at it.</Empty>
          )
        }
      </Loaded>
    </div>
  );
}
