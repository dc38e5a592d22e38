import type { Sandbox } from "../api/sandboxes";
import { plainText } from "../ui/format";

/** What people call it: its `name` in the metadata, or its id. Metadata is anybody's text. */
export function nameOf(sandbox: Pick<Sandbox, "id" | "metadata">): string {
  const name = plainText(sandbox.metadata.name ?? "").trim();
  return name === "" ? sandbox.id : name.slice(0, 80);
}

/** Why it is in its state, as words. */
export function reasonText(reason: string | null | undefined): string {
  return reason === null || reason === undefined ? "" : plainText(reason).replaceAll("_", " ");
}
