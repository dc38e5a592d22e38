import { Link } from "@tanstack/react-router";
import { Compass } from "lucide-react";
import { Empty } from "../ui/feedback";

export function NotFound() {
  return (
    <main>
      <Empty icon={<Compass aria-hidden className="size-6" />} title="There is no such page">
        <Link to="/sandboxes" className="text-accent underline">
          Go to the sandboxes
        </Link>
      </Empty>
    </main>
  );
}
