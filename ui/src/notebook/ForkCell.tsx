// A fork of the sandbox with its kernels' state, in which the notebook goes on another way.
import { useMutation } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { toast } from "sonner";
import { api, take } from "../api/client";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Dialog } from "../ui/Dialog";
import { ErrorBox } from "../ui/feedback";
import type { Cell } from "./cells";

interface Props {
  id: string;
  cell: Cell;
  /** How many cells have run after it. */
  later: number;
  onClose: () => void;
}

export function ForkCell({ id, cell, later, onClose }: Props) {
  const navigate = useNavigate();
  const body = { count: 1, memory: true };
  const make = useMutation({
    mutationFn: async () => {
      const { children } = await take(api.POST("/api/v1/sandboxes/{id}/fork", { params: { path: { id } }, body }));
      const made = children[0];
      if (made?.sandbox == null) throw new Error(made?.error?.message ?? "the server did not create a fork");
      return made.sandbox.id;
    },
    onSuccess: (fork) => {
      onClose();
      toast.success("This is the fork; the sandbox it came from goes on as it was");
      void navigate({
        to: "/sandboxes/$id/notebook",
        params: { id: fork },
        search: { from: id, until: cell.execution },
      });
    },
  });
  return (
    <Dialog
      open
      onClose={onClose}
      title="Fork from this cell"
      description="A new sandbox with the files, variables and imports of this one, in which the notebook can go on another way."
    >
      {later > 0 && (
        <p className="mb-4 rounded-md bg-warn-soft p-3 text-warn">
          {later === 1 ? "One cell has" : `${later} cells have`} run after it. A fork has the state of now, with what
          they did.
        </p>
      )}
      {make.error !== null && <ErrorBox error={make.error} className="mb-4" />}
      <div className="flex justify-end gap-2">
        <CopyAs
          recipe={{
            python: `Sandbox.connect("${id}").fork()`,
            curl: curl("POST", `/api/v1/sandboxes/${id}/fork`, body),
          }}
        />
        <Button onClick={onClose}>Cancel</Button>
        <Button tone="primary" busy={make.isPending} onClick={() => make.mutate()}>
          Fork
        </Button>
      </div>
    </Dialog>
  );
}
