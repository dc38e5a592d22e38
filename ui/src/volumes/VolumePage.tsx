import { useState } from "react";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { Box, Trash2 } from "lucide-react";
import { whyNot } from "../api/session";
import { nameOf } from "../sandbox/naming";
import { Badge, StateBadge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { CopyAs, curl } from "../ui/CopyAs";
import { Empty, Loaded } from "../ui/feedback";
import { mebibytes, moment, plainText } from "../ui/format";
import { Card, Cell, Facts, Page, Table } from "../ui/layout";
import { ReadOnly } from "../ui/ReadOnly";
import { Snippets } from "../ui/Snippets";
import { DeleteVolume } from "./DeleteVolume";
import { mountSnippets, useMounters, useVolume, type VolumeDetail } from "./volumes";
import { Use, VolumeState } from "./Volumes";

function MountedBy({ volume }: { volume: VolumeDetail }) {
  const { mounters } = useMounters();
  const known = new Map((mounters.get(volume.name) ?? []).map((sandbox) => [sandbox.id, sandbox]));
  if (volume.sandboxes.length === 0)
    return (
      <Empty icon={<Box aria-hidden className="size-6" />} title="No sandbox mounts it">
        Running and paused sandboxes that mount it are listed here.
      </Empty>
    );
  return (
    <Table label="Sandboxes that mount it" head={["Sandbox", "State", "At", "Access"]}>
      {volume.sandboxes.map((id) => {
        const sandbox = known.get(id);
        const mounts = sandbox?.volumes?.filter(({ name }) => name === volume.name) ?? [];
        return (
          <tr key={id}>
            <Cell>
              <Link to="/sandboxes/$id" params={{ id }} className="font-medium text-accent underline">
                {sandbox === undefined ? id : nameOf(sandbox)}
              </Link>
            </Cell>
            <Cell>{sandbox !== undefined && <StateBadge state={sandbox.state} />}</Cell>
            <Cell className="font-mono">{mounts.map(({ path }) => plainText(path)).join(", ") || "–"}</Cell>
            <Cell>
              {mounts.map(({ path, read_only }) => (
                <Badge key={path}>{read_only ? "read-only" : "read and write"}</Badge>
              ))}
            </Cell>
          </tr>
        );
      })}
    </Table>
  );
}

export function VolumePage() {
  const { volume: id } = useParams({ from: "/shell/volumes/$volume" });
  const navigate = useNavigate();
  const query = useVolume(id);
  const { mounters } = useMounters();
  const [deleting, setDeleting] = useState(false);
  const volume = query.data;
  const users = (detail: VolumeDetail) => {
    const known = new Map((mounters.get(detail.name) ?? []).map((sandbox) => [sandbox.id, sandbox]));
    return detail.sandboxes.map((one) => known.get(one) ?? { id: one, metadata: {} });
  };
  return (
    <Page
      name={volume?.name ?? "Volume"}
      title={
        <span className="flex min-w-0 flex-wrap items-baseline gap-x-2">
          <Link to="/volumes" className="text-base font-normal text-dim hover:underline">
            Volumes /
          </Link>
          <span className="break-all">{plainText(volume?.name ?? id)}</span>
        </span>
      }
      actions={
        volume !== undefined && (
          <>
            <Button
              why={whyNot("delete volumes")}
              onClick={() => setDeleting(true)}
              icon={<Trash2 aria-hidden className="size-4" />}
            >
              Delete
            </Button>
            <Button
              tone="primary"
              why={whyNot("create sandboxes")}
              onClick={() => void navigate({ to: "/sandboxes", search: { create: true, volume: volume.name } })}
              icon={<Box aria-hidden className="size-4" />}
            >
              Create sandbox
            </Button>
          </>
        )
      }
    >
      <ReadOnly why={whyNot("delete or mount volumes")} />
      <Loaded query={query} what="Loading the volume">
        {(detail) => (
          <>
            <Card title="Details">
              <Facts
                facts={[
                  ["Used", <Use key="used" volume={detail} used={detail.used_bytes ?? null} />],
                  ["State", <VolumeState key="s" used={detail.used_bytes ?? null} mounted={detail.sandboxes.length} />],
                  ["Size limit", mebibytes(detail.size_mib)],
                  ["Created", moment(detail.created_at)],
                  ...(detail.installation === null || detail.installation === undefined
                    ? []
                    : ([["Installation", plainText(detail.installation)]] as [string, string][])),
                  [
                    "Id",
                    <code key="id" className="font-mono text-xs break-all">
                      {detail.id}
                    </code>,
                  ],
                ]}
              />
            </Card>
            <Card title="Mounted by">
              <MountedBy volume={detail} />
            </Card>
            <Card
              title="Mount it"
              actions={
                <CopyAs
                  label="Copy a command that shows it"
                  recipe={{ curl: curl("GET", `/api/v1/volumes/${detail.id}`) }}
                />
              }
            >
              <Snippets label="Mount it" snippets={mountSnippets(detail.name)} />
            </Card>
            {deleting && (
              <DeleteVolume
                volume={detail}
                usedBytes={detail.used_bytes}
                mounters={users(detail)}
                onClose={() => setDeleting(false)}
                onDeleted={() => void navigate({ to: "/volumes" })}
              />
            )}
          </>
        )}
      </Loaded>
    </Page>
  );
}
