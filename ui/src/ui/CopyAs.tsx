// "Copy as": what a button does, as a command line, as a program and as a plain request.
import { DropdownMenu } from "radix-ui";
import { Copy, Terminal } from "lucide-react";
import { toast } from "sonner";
import { Button } from "./Button";

export interface Recipe {
  /** With E2B's CLI, where it can do it. */
  cli?: string;
  /** With E2B's Python SDK, where it can do it. */
  python?: string;
  /** With E2B's JavaScript SDK, where it can do it. */
  js?: string;
  curl: string;
}

export async function copyText(text: string, what: string) {
  try {
    await navigator.clipboard.writeText(text);
    toast.success(`Copied ${what}`);
  } catch {
    toast.error("The browser does not let this page use the clipboard", {
      description: "Pages have it over https and on localhost only.",
    });
  }
}

/** A request to our API as a line for a shell that has sourced `DIR/env`. */
export function curl(method: string, path: string, body?: unknown): string {
  const data =
    body === undefined
      ? ""
      : ` \\\n  -H 'content-type: application/json' -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
  const verb = method === "GET" ? "" : ` -X ${method}`;
  return `curl -sS${verb} -H "X-API-KEY: $COFFER_API_KEY" "$COFFER_URL${path}"${data}`;
}

export function CopyAs({ recipe, label = "Copy as a command" }: { recipe: Recipe; label?: string }) {
  const entries: [string, string | undefined][] = [
    ["CLI", recipe.cli],
    ["Python", recipe.python],
    ["JavaScript", recipe.js],
    ["curl", recipe.curl],
  ];
  return (
    <DropdownMenu.Root>
      <DropdownMenu.Trigger asChild>
        <Button tone="ghost" aria-label={label} title={label} icon={<Terminal aria-hidden className="size-4" />} />
      </DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content
          align="end"
          collisionPadding={8}
          className="z-50 w-[min(560px,calc(100vw-16px))] rounded-lg border border-line bg-surface p-1 shadow-lg"
        >
          {entries.map(([name, text]) =>
            text === undefined ? null : (
              <DropdownMenu.Item
                key={name}
                onSelect={() => void copyText(text, `the ${name} command`)}
                className="flex items-start gap-3 rounded-md px-2 py-1.5 outline-none data-[highlighted]:bg-raised"
              >
                <span className="w-16 shrink-0 pt-0.5 text-xs font-medium text-dim">{name}</span>
                <code className="min-w-0 flex-1 font-mono text-xs break-all whitespace-pre-wrap">{text}</code>
                <Copy aria-hidden className="mt-0.5 size-3.5 shrink-0 text-dim" />
              </DropdownMenu.Item>
            ),
          )}
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}
