import { useState } from "react";
import { Link, useNavigate } from "@tanstack/react-router";
import { HardDrive, Plus, Trash2 } from "lucide-react";
import type { Sandbox } from "../api/sandboxes";
import { whyNot } from "../api/session";
import { nameOf } from "../sandbox/naming";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { Empty, Loaded } from "../ui/feedback";
import { TextField } from "../ui/fields";
import { bytes, mebibytes, plainText } from "../ui/format";
import { Card, Cell, Meter, Page, Table } from "../ui/layout";
import { ReadOnly } from "../ui/ReadOnly";
import { Snippets } from "../ui/Snippets";
import { Ago } from "../ui/time";
import { DeleteVolume } from "./DeleteVolume";
import { NewVolume } from "./NewVolume";
import { mountSnippets, useMounters, useVolumeBytes, useVolumes, type Volume } from "./volumes";

/** How much of its limit a volume uses. */
export function Use({ volume, used }: { volume: Volume; used: number | null | undefined }) {
  const limit = mebibytes(volume.size_mib);
  if (used === undefined) return <span className="text-dim">of {limit}</span>;
  if (used === null) return <span className="text-dim">unknown, of {limit}</span>;
  return (
    <div className="w-36 space-y-1">
      <span className="whitespace-nowrap">
        {bytes(used)} <span className="text-dim">of {limit}</span>
      </span>
      <Meter value={used} top={volume.size_mib * 1024 * 1024} label={`Used of ${volume.name}`} />
    </div>
  );
}

/** Whether it is mounted, or its host is away. */
export function VolumeState({ used, mounted }: { used: number | null | undefined; mounted: number }) {
  if (used === null) return <Badge tone="warn">host unreachable</Badge>;
  return mounted > 0 ? <Badge tone="ok">mounted</Badge> : <Badge>not mounted</Badge>;
}

function Mounters({ sandboxes }: { sandboxes: Sandbox[] }) {
  const [first, second] = sandboxes;
  if (first === undefined) return <span className="text-dim">–</span>;
  return (
    <span className="flex min-w-0 items-center gap-1.5">
      <Link
        to="/sandboxes/$id"
        params={{ id: first.id }}
        className="inline-block max-w-40 truncate text-accent underline"
      >
        {nameOf(first)}
      </Link>
      {second !== undefined && (
        <span className="whitespace-nowrap text-dim">
          +{sandboxes.length - 1} <span className="sr-only">more sandboxes</span>
        </span>
      )}
    </span>
  );
}

function List({ volumes, onDelete }: { volumes: Volume[]; onDelete: (volume: Volume) => void }) {
  const { mounters } = useMounters();
  const used = useVolumeBytes(volumes);
  const why = whyNot("delete volumes");
  return (
    <Table
      label="Volumes"
      head={[
        "Name",
        { wide: "State" },
        { wide: "Used" },
        { wide: "Mounted by" },
        { wide: "Created" },
        <span key="actions" className="sr-only">
          Actions
        </span>,
      ]}
    >
      {volumes.map((volume) => {
        const users = mounters.get(volume.name) ?? [];
        return (
          <tr key={volume.id} className="hover:bg-raised/60">
            <Cell>
              <Link
                to="/volumes/$volume"
                params={{ volume: volume.id }}
                className="font-medium break-all text-accent underline"
              >
                {plainText(volume.name)}
              </Link>
              <div className="mt-1 flex flex-wrap items-center gap-x-4 gap-y-1 sm:hidden">
                <Use volume={volume} used={used.get(volume.id)} />
                <VolumeState used={used.get(volume.id)} mounted={users.length} />
              </div>
            </Cell>
            <Cell wide>
              <VolumeState used={used.get(volume.id)} mounted={users.length} />
            </Cell>
            <Cell wide>
              <Use volume={volume} used={used.get(volume.id)} />
            </Cell>
            <Cell wide>
              <Mounters sandboxes={users} />
            </Cell>
            <Cell wide className="whitespace-nowrap text-dim">
              <Ago at={volume.created_at} />
            </Cell>
            <Cell className="text-right">
              <Button
                tone="ghost"
                why={why}
                aria-label={`Delete ${volume.name}`}
                title="Delete"
                onClick={() => onDelete(volume)}
                icon={<Trash2 aria-hidden className="size-4" />}
              />
            </Cell>
          </tr>
        );
      })}
    </Table>
  );
}

const FILTER_FROM = 8;

export function Volumes() {
  const query = useVolumes();
  const navigate = useNavigate();
  const [creating, setCreating] = useState(false);
  const [deleting, setDeleting] = useState<Volume>();
  const [filter, setFilter] = useState("");
  const { mounters } = useMounters();
  const used = useVolumeBytes(deleting === undefined ? [] : [deleting]);
  const why = whyNot("create volumes");
  const all = query.data?.items ?? [];
  const create = (
    <Button tone="primary" why={why} onClick={() => setCreating(true)} icon={<Plus aria-hidden className="size-4" />}>
      New volume
    </Button>
  );
  return (
    <Page title="Volumes" actions={create}>
      <ReadOnly why={whyNot("create or delete volumes")} />
      <Card>
        {all.length >= FILTER_FROM && (
          <div className="border-b border-line p-3 sm:max-w-sm">
            <TextField
              label="Filter"
              hideLabel
              type="search"
              placeholder="Filter by name"
              value={filter}
              onChange={(event) => setFilter(event.target.value)}
            />
          </div>
        )}
        <Loaded query={query} what="Loading volumes">
          {({ items }) => {
            const shown = items.filter(({ name }) => name.toLowerCase().includes(filter.trim().toLowerCase()));
            if (items.length === 0)
              return (
                <Empty icon={<HardDrive aria-hidden className="size-7" />} title="No volumes yet">
                  <p>
                    A sandbox&apos;s files end with it. A volume is a directory that stays: for package caches,
                    datasets, models, or results that several sandboxes share.
                  </p>
                  {create}
                </Empty>
              );
            return shown.length === 0 ? (
              <Empty title="No volume matches the filter" />
            ) : (
              <List volumes={shown} onDelete={setDeleting} />
            );
          }}
        </Loaded>
      </Card>
      {query.data !== undefined && (
        <Card title="Mount a volume">
          <Snippets label="Mount a volume" snippets={mountSnippets(all.at(-1)?.name ?? "pip-cache")} />
        </Card>
      )}
      {creating && (
        <NewVolume
          taken={all.map(({ name }) => name)}
          onClose={() => setCreating(false)}
          onCreated={(made) => void navigate({ to: "/volumes/$volume", params: { volume: made.id } })}
        />
      )}
      {deleting !== undefined && (
        <DeleteVolume
          volume={deleting}
          usedBytes={used.get(deleting.id)}
          mounters={mounters.get(deleting.name) ?? []}
          onClose={() => setDeleting(undefined)}
        />
      )}
    </Page>
  );
}
