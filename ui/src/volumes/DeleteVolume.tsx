import { useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { toast } from "sonner";
import { api, take } from "../api/client";
import type { Sandbox } from "../api/sandboxes";
import { nameOf } from "../sandbox/naming";
import { Button } from "../ui/Button";
import { Confirm, Dialog } from "../ui/Dialog";
import { bytes } from "../ui/format";
import type { Volume } from "./volumes";

interface Props {
  volume: Volume;
  usedBytes: number | null | undefined;
  /** Sandboxes that are known to mount it. */
  mounters: Pick<Sandbox, "id" | "metadata">[];
  onClose: () => void;
  onDeleted?: () => void;
}

const MOST_NAMED = 8;

/** Asks, and says what is lost. A volume that is mounted is not deleted: then it says by which sandboxes. */
export function DeleteVolume({ volume, usedBytes, mounters, onClose, onDeleted }: Props) {
  const queries = useQueryClient();
  if (mounters.length > 0) {
    return (
      <Dialog open onClose={onClose} title={`${volume.name} is mounted`}>
        <div className="space-y-4">
          <p className="text-dim">
            A volume can be deleted when no running or paused sandbox mounts it. Destroy{" "}
            {mounters.length === 1 ? "this sandbox" : `these ${mounters.length} sandboxes`} first:
          </p>
          <ul className="space-y-1">
            {mounters.slice(0, MOST_NAMED).map((sandbox) => (
              <li key={sandbox.id} className="truncate">
                <Link to="/sandboxes/$id" params={{ id: sandbox.id }} className="font-medium text-accent underline">
                  {nameOf(sandbox)}
                </Link>
              </li>
            ))}
            {mounters.length > MOST_NAMED && <li className="text-dim">and {mounters.length - MOST_NAMED} more</li>}
          </ul>
          <div className="flex justify-end">
            <Button onClick={onClose}>Close</Button>
          </div>
        </div>
      </Dialog>
    );
  }
  return (
    <Confirm
      open
      onClose={onClose}
      title={`Delete the volume ${volume.name}?`}
      action="Delete volume"
      danger
      onConfirm={async () => {
        await take(api.DELETE("/api/v1/volumes/{volume}", { params: { path: { volume: volume.id } } }));
        toast.success(`Volume ${volume.name} deleted`);
        onDeleted?.();
        queries.removeQueries({ queryKey: ["volume", volume.id] });
        await queries.invalidateQueries({ queryKey: ["volumes"] });
      }}
    >
      <ul className="list-disc space-y-1 pl-5">
        <li>
          All its files are deleted
          {usedBytes === null || usedBytes === undefined ? "" : ` (${bytes(usedBytes)})`}. There is no copy: snapshots
          do not contain volumes.
        </li>
        <li>Programs that create sandboxes with this volume fail until a volume of this name exists again.</li>
        <li>Tokens of E2B&apos;s volume content API for it stop working.</li>
      </ul>
    </Confirm>
  );
}
