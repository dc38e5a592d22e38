import type { ReactNode } from "react";
import { Moon, Play, Skull } from "lucide-react";
import type { Sandbox } from "../api/sandboxes";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { Empty } from "../ui/feedback";
import { useResume } from "./Actions";

/**
 * Shows its children where the sandbox runs. What needs a running sandbox must not ask a paused one for anything: a
 * sandbox that wakes by itself would, and nobody asked for that.
 */
export function Awake({ sandbox, what, children }: { sandbox: Sandbox; what: string; children: ReactNode }) {
  const resume = useResume(sandbox.id);
  if (sandbox.state === "running") return <>{children}</>;
  if (sandbox.state === "paused") {
    return (
      <Empty icon={<Moon aria-hidden className="size-6" />} title="This sandbox is paused">
        <p>{what} Nothing here wakes it unless you say so.</p>
        <Button
          tone="primary"
          onClick={() => resume.mutate()}
          busy={resume.isPending}
          disabled={!may("write")}
          icon={<Play aria-hidden className="size-4" />}
        >
          Resume
        </Button>
      </Empty>
    );
  }
  if (sandbox.state === "creating") return <Empty title="The sandbox is being created" />;
  return (
    <Empty icon={<Skull aria-hidden className="size-6" />} title="This sandbox has ended">
      <p>Its logs, events and usage are still here.</p>
    </Empty>
  );
}
