// The source of a cell. It grows with its text.
import { useEffect, useRef } from "react";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { indentUnit, syntaxHighlighting } from "@codemirror/language";
import { Compartment, EditorState } from "@codemirror/state";
import { drawSelection, EditorView, highlightSpecialChars, keymap, placeholder } from "@codemirror/view";
import { useDark } from "../shell/theme";
import { HIGHLIGHT_COLOURS } from "../ui/highlightColours";
import { highlighting } from "./highlight";

interface Props {
  value: string;
  language: string;
  label: string;
  editable: boolean;
  focus?: boolean;
  onChange: (text: string) => void;
  onRun: (andGoOn: boolean) => void;
}

const named = (label: string) => EditorView.contentAttributes.of({ "aria-label": label, "aria-multiline": "true" });

export function CodeEditor({ value, language, label, editable, focus = false, onChange, onRun }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView>(undefined);
  const changing = useRef({
    theme: new Compartment(),
    words: new Compartment(),
    rights: new Compartment(),
    name: new Compartment(),
  });
  const dark = useDark();
  const callbacks = useRef({ onChange, onRun });
  callbacks.current = { onChange, onRun };
  useEffect(() => {
    const { theme, words, rights, name } = changing.current;
    const run = (andGoOn: boolean) => () => {
      callbacks.current.onRun(andGoOn);
      return true;
    };
    // Escape gives Tab back to the browser, so that people without a mouse can leave.
    const leave = (now: EditorView) => {
      now.setTabFocusMode(1500);
      return true;
    };
    const made = new EditorView({
      parent: box.current as HTMLDivElement,
      state: EditorState.create({
        doc: value,
        extensions: [
          highlightSpecialChars(),
          history(),
          drawSelection(),
          EditorView.lineWrapping,
          indentUnit.of("    "),
          words.of(highlighting(language)),
          syntaxHighlighting(HIGHLIGHT_COLOURS),
          placeholder("Code; Shift+Enter runs it"),
          theme.of(EditorView.theme({}, { dark: false })),
          rights.of(EditorState.readOnly.of(!editable)),
          name.of(named(label)),
          keymap.of([
            { key: "Shift-Enter", run: run(true), preventDefault: true },
            { key: "Mod-Enter", run: run(false), preventDefault: true },
            { key: "Escape", run: leave },
            indentWithTab,
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
    if (focus) made.focus();
    return () => made.destroy();
    // The text is the editor's own once it is open; what else changes is told to it below.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, []);
  useEffect(() => {
    view.current?.dispatch({ effects: changing.current.words.reconfigure(highlighting(language)) });
  }, [language]);
  // A cell that is put in between makes others of those below.
  useEffect(() => {
    view.current?.dispatch({ effects: changing.current.name.reconfigure(named(label)) });
  }, [label]);
  useEffect(() => {
    view.current?.dispatch({ effects: changing.current.rights.reconfigure(EditorState.readOnly.of(!editable)) });
  }, [editable]);
  useEffect(() => {
    view.current?.dispatch({ effects: changing.current.theme.reconfigure(EditorView.theme({}, { dark })) });
  }, [dark]);
  return <div ref={box} className="min-h-9 px-2 py-0.5" />;
}
