// A Dockerfile with line numbers and colours. A line that the server refused, or whose step failed, is marked.
import { useEffect, useRef } from "react";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { syntaxHighlighting } from "@codemirror/language";
import { Compartment, EditorState, RangeSetBuilder, StateEffect, StateField } from "@codemirror/state";
import {
  Decoration,
  drawSelection,
  EditorView,
  highlightActiveLine,
  highlightSpecialChars,
  keymap,
  lineNumbers,
  placeholder,
  type DecorationSet,
} from "@codemirror/view";
import { useDark } from "../shell/theme";
import { HIGHLIGHT_COLOURS } from "../ui/highlightColours";
import { dockerfile } from "./dockerfile";

const mark = StateEffect.define<number | undefined>();
const wrong = Decoration.line({ class: "cm-wrong-line" });

const marked = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(old, transaction) {
    for (const effect of transaction.effects) {
      if (!effect.is(mark)) continue;
      const builder = new RangeSetBuilder<Decoration>();
      const { doc } = transaction.state;
      if (effect.value !== undefined && effect.value >= 1 && effect.value <= doc.lines) {
        const { from } = doc.line(effect.value);
        builder.add(from, from, wrong);
      }
      return builder.finish();
    }
    // A line that is being mended is not wrong any more.
    return transaction.docChanged ? Decoration.none : old;
  },
  provide: (field) => EditorView.decorations.from(field),
});

interface Props {
  value: string;
  onChange: (text: string) => void;
  onSubmit: () => void;
  /** From 1. */
  wrongLine?: number;
}

export function DockerfileEditor({ value, onChange, onSubmit, wrongLine }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView>(undefined);
  const theme = useRef(new Compartment());
  const dark = useDark();
  const callbacks = useRef({ onChange, onSubmit });
  callbacks.current = { onChange, onSubmit };
  useEffect(() => {
    const submit = () => {
      callbacks.current.onSubmit();
      return true;
    };
    const made = new EditorView({
      parent: box.current as HTMLDivElement,
      state: EditorState.create({
        doc: value,
        extensions: [
          lineNumbers(),
          highlightSpecialChars(),
          history(),
          drawSelection(),
          highlightActiveLine(),
          EditorView.lineWrapping,
          dockerfile,
          syntaxHighlighting(HIGHLIGHT_COLOURS),
          marked,
          placeholder("FROM debian:12"),
          theme.current.of(EditorView.theme({}, { dark: false })),
          EditorView.contentAttributes.of({ "aria-label": "Dockerfile", "aria-multiline": "true" }),
          // Tab leaves the editor, so that people without a mouse can.
          keymap.of([{ key: "Mod-Enter", run: submit, preventDefault: true }, ...historyKeymap, ...defaultKeymap]),
          EditorView.updateListener.of(
            (update) => update.docChanged && callbacks.current.onChange(update.state.sliceDoc()),
          ),
        ],
      }),
    });
    view.current = made;
    return () => made.destroy();
    // The text is the editor's own once it is open; another text from outside is put in below.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, []);
  useEffect(() => {
    const now = view.current;
    if (now !== undefined && now.state.sliceDoc() !== value)
      now.dispatch({ changes: { from: 0, to: now.state.doc.length, insert: value } });
  }, [value]);
  useEffect(() => {
    view.current?.dispatch({ effects: mark.of(wrongLine) });
  }, [wrongLine]);
  useEffect(() => {
    view.current?.dispatch({ effects: theme.current.reconfigure(EditorView.theme({}, { dark })) });
  }, [dark]);
  return <div ref={box} className="h-full min-h-72 overflow-hidden" />;
}
