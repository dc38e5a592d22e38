// One file: a picture, or text in an editor.
import { useEffect, useRef, useState, type ReactNode } from "react";
import { useBlocker } from "@tanstack/react-router";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { Compartment, EditorState } from "@codemirror/state";
import {
  drawSelection,
  EditorView,
  highlightActiveLine,
  highlightSpecialChars,
  keymap,
  lineNumbers,
} from "@codemirror/view";
import { ArrowLeft, Download, Save } from "lucide-react";
import { toast } from "sonner";
import { download, fileVersion, readFile, writeFile, type Content } from "../api/files";
import { may, session } from "../api/session";
import { coloursOf } from "../code/editor";
import { useDark } from "../shell/theme";
import { Button } from "../ui/Button";
import { Confirm } from "../ui/Dialog";
import { Empty, Loaded, toastError } from "../ui/feedback";
import { plainText } from "../ui/format";
import { lineSeparator } from "./lineEnds";

function Editor({
  text,
  editable,
  path,
  onChange,
  onSave,
}: {
  text: string;
  editable: boolean;
  path: string;
  onChange: (text: string) => void;
  onSave: () => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const dark = useDark();
  const theme = useRef(new Compartment());
  const colours = useRef(new Compartment());
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
          EditorState.lineSeparator.of(lineSeparator(text)),
          lineNumbers(),
          highlightSpecialChars(),
          history(),
          drawSelection(),
          highlightActiveLine(),
          search({ top: true }),
          highlightSelectionMatches(),
          EditorState.readOnly.of(!editable),
          EditorView.contentAttributes.of({ "aria-label": `Contents of ${plainText(path)}` }),
          theme.current.of(EditorView.theme({}, { dark: false })),
          colours.current.of([]),
          keymap.of([
            { key: "Mod-s", run: save, preventDefault: true },
            indentWithTab,
            ...searchKeymap,
            ...historyKeymap,
            ...defaultKeymap,
          ]),
          EditorView.updateListener.of(
            (update) => update.docChanged && callbacks.current.onChange(update.state.sliceDoc()),
          ),
        ],
      }),
    });
    view.current = made;
    // Without colours it is a file all the same.
    void coloursOf(path, text)
      .then((found) => view.current === made && made.dispatch({ effects: colours.current.reconfigure(found) }))
      .catch(() => undefined);
    return () => {
      view.current = undefined;
      made.destroy();
    };
    // Another file is another editor (by its key); the text of this one is its own once it is open.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [editable, path]);
  useEffect(() => {
    view.current?.dispatch({ effects: theme.current.reconfigure(EditorView.theme({}, { dark })) });
  }, [dark]);
  return <div ref={box} className="min-h-0 flex-1 overflow-hidden" />;
}

type Text = Extract<Content, { kind: "text" }>;

/** What was written and not saved, with what it was made of. Here, so that a sandbox that pauses takes none of it away. */
const drafts = new Map<string, { text: string; opened: Text }>();

function Head({
  id,
  path,
  onClose,
  children,
}: {
  id: string;
  path: string;
  onClose: () => void;
  children?: ReactNode;
}) {
  return (
    <div className="flex flex-wrap items-center gap-2 border-b border-line bg-surface px-3 py-2">
      <Button
        tone="ghost"
        aria-label="Back to the directory"
        onClick={onClose}
        icon={<ArrowLeft aria-hidden className="size-4" />}
      />
      <h2 className="min-w-0 flex-1 truncate font-mono">{plainText(path)}</h2>
      {children}
      <Button
        onClick={() => void download(id, path).catch(toastError)}
        icon={<Download aria-hidden className="size-4" />}
      >
        Download
      </Button>
    </div>
  );
}

function TextFile({ id, path, content, onClose }: { id: string; path: string; content: Text; onClose: () => void }) {
  const queries = useQueryClient();
  const place = `${id}:${path}`;
  // What is in the editor was made of this, whatever is read later.
  const [opened] = useState(() => drafts.get(place)?.opened ?? content);
  const [draft, setDraft] = useState(() => drafts.get(place)?.text);
  const [first] = useState(draft ?? opened.text);
  const version = useRef(opened.version);
  const [changed, setChanged] = useState(false);
  const editable = opened.whole && may("write");

  const write = (text: string) => {
    drafts.set(place, { text, opened: { ...opened, version: version.current } });
    setDraft(text);
  };
  const save = useMutation({
    mutationFn: async ({ text, over }: { text: string; over: boolean }) => {
      if (!over && (await fileVersion(id, path)) !== version.current) return false;
      await writeFile(id, path, text);
      version.current = await fileVersion(id, path);
      return true;
    },
    onSuccess: (saved, { text }) => {
      if (!saved) return setChanged(true);
      // What was written meanwhile stays a draft, of the file as it is now.
      const now = drafts.get(place)?.text;
      if (now === undefined || now === text) {
        drafts.delete(place);
        setDraft(undefined);
      } else {
        write(now);
      }
      toast.success("Saved");
      void queries.invalidateQueries({ queryKey: ["files", id] });
    },
  });
  const store = () => {
    if (draft !== undefined && !save.isPending) save.mutate({ text: draft, over: false }, { onError: toastError });
  };
  useBlocker({
    shouldBlockFn: () => {
      // Whose session is over cannot stay.
      if (session() === undefined) return false;
      const leave = confirm("Leave without saving?");
      if (leave) drafts.delete(place);
      return !leave;
    },
    enableBeforeUnload: draft !== undefined,
    disabled: draft === undefined,
  });
  return (
    <>
      <Head id={id} path={path} onClose={onClose}>
        {draft !== undefined && <span className="text-dim">changed</span>}
        {editable && (
          <Button
            tone="primary"
            disabled={draft === undefined}
            busy={save.isPending}
            onClick={store}
            icon={<Save aria-hidden className="size-4" />}
          >
            Save
          </Button>
        )}
      </Head>
      {!opened.whole && (
        <p className="bg-warn-soft px-4 py-1.5 text-warn">The first MiB is shown. Download the file for all of it.</p>
      )}
      <Editor text={first} editable={editable} path={path} onChange={write} onSave={store} />
      <Confirm
        open={changed}
        onClose={() => setChanged(false)}
        title="The file has changed"
        action="Overwrite"
        danger
        onConfirm={() => save.mutateAsync({ text: draft ?? "", over: true })}
      >
        Something else has written or removed {plainText(path)} since it was opened here. Overwriting loses that change.
      </Confirm>
    </>
  );
}

export function FileView({ id, path, onClose }: { id: string; path: string; onClose: () => void }) {
  const query = useQuery({
    queryKey: ["content", id, path],
    queryFn: () => readFile(id, path),
    staleTime: 0,
    gcTime: 0,
  });
  const content = query.data;
  useEffect(() => {
    if (content?.kind !== "picture") return;
    return () => URL.revokeObjectURL(content.address);
  }, [content]);
  return (
    <div className="flex h-full min-h-0 flex-col">
      {content?.kind !== "text" && <Head id={id} path={path} onClose={onClose} />}
      <Loaded query={query} what="Opening">
        {(shown) =>
          shown.kind === "text" ? (
            <TextFile key={path} id={id} path={path} content={shown} onClose={onClose} />
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
