import { useInfiniteQuery } from "@tanstack/react-query";
import { api, take, type Schemas } from "../api/client";
import { Button } from "../ui/Button";
import { classes } from "../ui/classes";
import { Dialog } from "../ui/Dialog";
import { Empty, Loaded } from "../ui/feedback";
import { plainText } from "../ui/format";
import { pieceText } from "./pieces";

type Execution = Schemas["Execution"];

export function ExecutionOutput({ execution, onClose }: { execution: Execution; onClose: () => void }) {
  const query = useInfiniteQuery({
    queryKey: ["output", execution.id],
    queryFn: ({ pageParam }) =>
      take(
        api.GET("/api/v1/executions/{execution}/output", {
          params: { path: { execution: execution.id }, query: { cursor: pageParam } },
        }),
      ),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => (page.items.length > 0 ? (page.next ?? undefined) : undefined),
    maxPages: 20,
  });
  return (
    <Dialog
      open
      onClose={onClose}
      title="Output"
      description={<code className="font-mono break-all">{plainText(execution.command)}</code>}
      wide
    >
      <Loaded query={query}>
        {({ pages }) => {
          const pieces = pages.flatMap((page) => page.items);
          if (pieces.length === 0) return <Empty title="No output" />;
          return (
            <pre
              tabIndex={0}
              aria-label="Output"
              className="max-h-[60vh] overflow-auto rounded-md bg-raised p-3 font-mono text-xs break-words whitespace-pre-wrap"
            >
              {pieces.map((piece) => (
                <span
                  key={`${piece.stream}${piece.offset}${piece.kind}`}
                  className={classes(piece.stream === "stderr" && "text-bad")}
                >
                  {pieceText(piece)}
                </span>
              ))}
            </pre>
          );
        }}
      </Loaded>
      {query.hasNextPage && (
        <Button className="mt-3" busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
          More
        </Button>
      )}
    </Dialog>
  );
}
