// The same thing in several languages, one shown at a time, with a button that copies it.
import { Tabs } from "radix-ui";
import { Copy } from "lucide-react";
import { Button } from "./Button";
import { copyText } from "./CopyAs";

export function Snippets({ label, snippets }: { label: string; snippets: [language: string, text: string][] }) {
  return (
    <Tabs.Root defaultValue={snippets[0]?.[0]}>
      <Tabs.List aria-label={label} className="flex gap-1 overflow-x-auto border-b border-line px-2">
        {snippets.map(([language]) => (
          <Tabs.Trigger
            key={language}
            value={language}
            className="-mb-px border-b-2 border-transparent px-3 py-2 text-sm text-dim hover:text-ink data-[state=active]:border-accent data-[state=active]:font-medium data-[state=active]:text-ink"
          >
            {language}
          </Tabs.Trigger>
        ))}
      </Tabs.List>
      {snippets.map(([language, text]) => (
        <Tabs.Content key={language} value={language} tabIndex={-1} className="relative">
          <pre
            tabIndex={0}
            aria-label={`${label}, ${language}`}
            className="overflow-x-auto p-4 pr-14 font-mono text-xs leading-5"
          >
            {text}
          </pre>
          <Button
            tone="ghost"
            aria-label={`Copy the ${language} code`}
            title="Copy"
            className="absolute top-2 right-2"
            onClick={() => void copyText(text, `the ${language} code`)}
            icon={<Copy aria-hidden className="size-4" />}
          />
        </Tabs.Content>
      ))}
    </Tabs.Root>
  );
}
