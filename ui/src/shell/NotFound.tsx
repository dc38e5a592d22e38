import { Link } from "@tanstack/react-router";
import { Compass } from "lucide-react";
import { Empty } from "../ui/feedback";

export function NotFound() {
  return (
    <main>
      <Empty icon={<Compass aria-hidden className="size-6" />} title="Page not found">
        <Link to="/board" className="text-accent underline">
          Go to the board
        </Link>
      </Empty>
    </main>
  );
}
