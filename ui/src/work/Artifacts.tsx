// What runs kept: reports, logs, links. Names and contents are hostile; contents are only ever saved.
import { useQuery } from "@tanstack/react-query";
import { Download } from "lucide-react";
import { api, raw, take, type Schemas } from "../api/client";
import { saveAnswer } from "../api/files";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { toastError } from "../ui/feedback";
import { bytes, plainText } from "../ui/format";
import { Card } from "../ui/layout";
import { Ago } from "../ui/time";

type Artifact = Schemas["Artifact"];

async function save({ id, name }: Artifact) {
  await saveAnswer(await raw(`/api/v1/artifacts/${encodeURIComponent(id)}/content`), name);
}

/** An address that a link may lead to; others are only text. */
function address(url: string): string | undefined {
  return URL.canParse(url) && ["http:", "https:"].includes(new URL(url).protocol) ? url : undefined;
}

/** Nothing where nothing was kept. */
export function Artifacts({ of }: { of: { task_id: string } | { run_id: string } }) {
  const { data } = useQuery({
    queryKey: ["artifacts", of],
    queryFn: () => take(api.GET("/api/v1/artifacts", { params: { query: { ...of, limit: 200 } } })),
  });
  if (data === undefined || data.items.length === 0) return null;
  const [[name, value] = []] = Object.entries(of);
  return (
    <Card title="Artifacts" actions={<CopyAs recipe={{ curl: curl("GET", `/api/v1/artifacts?${name}=${value}`) }} />}>
      <ul className="divide-y divide-line" aria-label="Artifacts">
        {data.items.map((artifact) => (
          <li key={artifact.id} className="flex items-center gap-3 px-4 py-2">
            <div className="min-w-0 flex-1">
              {artifact.url && address(artifact.url) !== undefined ? (
                <a
                  href={address(artifact.url)}
                  target="_blank"
                  rel="noopener noreferrer"
                  title={plainText(artifact.url)}
                  className="font-medium break-all text-accent underline"
                >
                  {plainText(artifact.name)}
                </a>
              ) : (
                <span className="font-medium break-all">{plainText(artifact.name)}</span>
              )}
              <p className="text-xs break-words text-dim">
                {[
                  plainText(artifact.kind),
                  artifact.url ? plainText(artifact.url) : bytes(artifact.size_bytes),
                  plainText(artifact.description),
                ]
                  .filter(Boolean)
                  .join(" · ")}{" "}
                · <Ago at={artifact.created_at} />
              </p>
            </div>
            {!artifact.url && (
              <Button
                tone="ghost"
                aria-label={`Save ${plainText(artifact.name)}`}
                onClick={() => void save(artifact).catch(toastError)}
                icon={<Download aria-hidden className="size-4" />}
              />
            )}
          </li>
        ))}
      </ul>
    </Card>
  );
}
