// Who is told of what happens: addresses, what was sent to them, and how they answered.
import { useState } from "react";
import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { RotateCw, Webhook as Hook } from "lucide-react";
import { toast } from "sonner";
import { api, take, type Schemas } from "../api/client";
import { may } from "../api/session";
import { Badge, type Tone } from "../ui/Badge";
import { Button } from "../ui/Button";
import { copyText, curl } from "../ui/CopyAs";
import { Dialog } from "../ui/Dialog";
import { Empty, ErrorBox, Loaded, toastError } from "../ui/feedback";
import { SelectField, TextField } from "../ui/fields";
import { duration, moment, paragraphs, plainText } from "../ui/format";
import { Cell, Table } from "../ui/layout";
import { Ago } from "../ui/time";
import { usePresets } from "./AgentForm";
import { List, NewForm, Removal } from "./Collection";
import { SettingsFrame } from "./SettingsFrame";

type Webhook = Schemas["Webhook"];
type Delivery = Schemas["WebhookDelivery"];

const TONES: Record<string, Tone> = { waiting: "warn", delivered: "ok", failed: "bad" };
const WHY: Record<string, string> = {
  failing: "it failed for too long",
  gone: "it answered that it is gone",
  asked: "a person turned it off",
};

function ShownOnce({ secret, onClose }: { secret: string; onClose: () => void }) {
  return (
    <Dialog
      open
      onClose={onClose}
      title="Signing secret"
      description="It is shown only once. The receiver checks signatures with it."
    >
      <div className="space-y-4">
        <code className="block rounded-md bg-raised p-3 font-mono text-sm break-all">{secret}</code>
        <div className="flex justify-end gap-2">
          <Button onClick={() => void copyText(secret, "the secret")}>Copy</Button>
          <Button tone="primary" onClick={onClose}>
            Done
          </Button>
        </div>
      </div>
    </Dialog>
  );
}

function DeliveryRow({ webhook, delivery, onAgain }: { webhook: string; delivery: Delivery; onAgain: () => void }) {
  const [open, setOpen] = useState(false);
  const path = { webhook, delivery: delivery.id };
  const detail = useQuery({
    queryKey: ["webhooks", webhook, "delivery", delivery.id],
    queryFn: () => take(api.GET("/api/v1/webhooks/{webhook}/deliveries/{delivery}", { params: { path } })),
    enabled: open,
  });
  const again = useMutation({
    mutationFn: () =>
      take(api.POST("/api/v1/webhooks/{webhook}/deliveries/{delivery}/redeliver", { params: { path } })),
    onSuccess: onAgain,
    onError: toastError,
  });
  return (
    <>
      <tr>
        <Cell>
          <Badge tone={TONES[delivery.state]}>{delivery.state}</Badge>
        </Cell>
        <Cell className="font-mono text-xs">{plainText(delivery.kind)}</Cell>
        <Cell>
          {delivery.response_status ?? "–"}
          {delivery.error && (
            <span className="block min-w-32 max-w-xs text-xs break-words text-bad">{plainText(delivery.error)}</span>
          )}
        </Cell>
        <Cell className="whitespace-nowrap text-dim">
          {delivery.tries} {delivery.tries === 1 ? "try" : "tries"}
          {delivery.next_try_at && `, next at ${moment(delivery.next_try_at)}`}
        </Cell>
        <Cell className="whitespace-nowrap text-dim">
          {delivery.duration_ms ? duration(delivery.duration_ms) : "–"}
        </Cell>
        <Cell className="whitespace-nowrap text-dim">
          <Ago at={delivery.created_at} />
        </Cell>
        <Cell>
          <div className="flex justify-end gap-2">
            <Button tone="ghost" aria-expanded={open} onClick={() => setOpen(!open)}>
              {open ? "Less" : "More"}
            </Button>
            <Button
              disabled={!may("admin")}
              busy={again.isPending}
              aria-label={`Send ${delivery.kind} again`}
              title="Send again"
              onClick={() => again.mutate()}
              icon={<RotateCw aria-hidden className="size-4" />}
            />
          </div>
        </Cell>
      </tr>
      {open && (
        <tr>
          <td colSpan={7} className="px-4 pb-3">
            <Loaded query={detail}>
              {(whole) => (
                <div className="grid gap-3 lg:grid-cols-2">
                  {[["Request", whole.body] as const, ["Response", whole.response] as const].map(([name, text]) => (
                    <div key={name} className="min-w-0">
                      <p className="mb-1 text-xs text-dim">{name}</p>
                      <pre
                        tabIndex={0}
                        aria-label={name}
                        className="max-h-60 overflow-auto rounded-md bg-raised p-3 font-mono text-xs break-words whitespace-pre-wrap"
                      >
                        {text ? paragraphs(String(text)) : "nothing"}
                      </pre>
                    </div>
                  ))}
                </div>
              )}
            </Loaded>
          </td>
        </tr>
      )}
    </>
  );
}

function Deliveries({ webhook, onClose }: { webhook: Webhook; onClose: () => void }) {
  const [state, setState] = useState("");
  // Deliveries are no events: they are looked at while somebody looks.
  const query = useInfiniteQuery({
    queryKey: ["webhooks", webhook.id, "deliveries", state],
    queryFn: ({ pageParam }) =>
      take(
        api.GET("/api/v1/webhooks/{webhook}/deliveries", {
          params: { path: { webhook: webhook.id }, query: { limit: 50, state: state || undefined, cursor: pageParam } },
        }),
      ),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    maxPages: 10,
    refetchInterval: 3000,
  });
  const test = useMutation({
    mutationFn: () => take(api.POST("/api/v1/webhooks/{webhook}/test", { params: { path: { webhook: webhook.id } } })),
    onSuccess: () => query.refetch(),
    onError: toastError,
  });
  return (
    <Dialog
      open
      onClose={onClose}
      title="Deliveries"
      description={<span className="break-all">{plainText(webhook.url)}</span>}
      wide="very"
    >
      <div className="mb-3 flex flex-wrap items-center gap-2">
        <SelectField label="State" hideLabel value={state} onChange={(event) => setState(event.target.value)}>
          <option value="">All</option>
          <option value="waiting">Waiting</option>
          <option value="delivered">Delivered</option>
          <option value="failed">Failed</option>
        </SelectField>
        <Button busy={test.isPending} disabled={!may("admin")} onClick={() => test.mutate()}>
          Send a test
        </Button>
      </div>
      <Loaded query={query}>
        {({ pages }) => {
          const items = pages.flatMap((page) => page.items);
          if (items.length === 0) return <Empty title="No deliveries yet" />;
          return (
            <Table label="Deliveries" head={["State", "Event", "Response", "Attempts", "Duration", "When", ""]}>
              {items.map((delivery) => (
                <DeliveryRow
                  key={delivery.id}
                  webhook={webhook.id}
                  delivery={delivery}
                  onAgain={() => void query.refetch()}
                />
              ))}
            </Table>
          );
        }}
      </Loaded>
      {query.hasNextPage && (
        <Button className="mt-3" busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
          Show older
        </Button>
      )}
    </Dialog>
  );
}

function health(webhook: Webhook): { tone: Tone; word: string; why?: string } {
  if (!webhook.enabled) return { tone: "dim", word: "off", why: WHY[webhook.disabled_reason ?? ""] };
  if (webhook.failures > 0) return { tone: "bad", word: "failing", why: `${webhook.failures} in a row` };
  return { tone: "ok", word: "on", why: webhook.waiting > 0 ? `${webhook.waiting} waiting` : undefined };
}

export function Webhooks() {
  const queries = useQueryClient();
  const fresh = () => queries.invalidateQueries({ queryKey: ["webhooks"] });
  const query = useQuery({
    queryKey: ["webhooks"],
    queryFn: () => take(api.GET("/api/v1/webhooks", { params: { query: { limit: 200 } } })),
  });
  const secrets = useQuery({
    queryKey: ["secrets"],
    queryFn: () => take(api.GET("/api/v1/secrets")),
    enabled: may("admin"),
  });
  // Keys of models sign nothing.
  const ofModels = new Set(usePresets().data?.map((preset) => preset.usual_secret));
  const [url, setUrl] = useState("");
  const [events, setEvents] = useState("task.*, run.ended");
  const [secret, setSecret] = useState("");
  const [description, setDescription] = useState("");
  const [once, setOnce] = useState<string>();
  const [looking, setLooking] = useState<Webhook>();
  const [removing, setRemoving] = useState<Webhook>();
  const body = (): Schemas["NewWebhook"] => ({
    url,
    events: events.split(/[\s,]+/).filter(Boolean),
    ...(description === "" ? {} : { description }),
    ...(secret === "" ? {} : { secret }),
  });
  const make = useMutation({
    mutationFn: () => take(api.POST("/api/v1/webhooks", { body: body() })),
    onSuccess: (made) => {
      setUrl("");
      setOnce(made.signing_secret ?? undefined);
      void fresh();
    },
  });
  const change = useMutation({
    mutationFn: ({ id, enabled }: { id: string; enabled: boolean }) =>
      take(api.PATCH("/api/v1/webhooks/{webhook}", { params: { path: { webhook: id } }, body: { enabled } })),
    onSuccess: fresh,
    onError: toastError,
  });
  const rotate = useMutation({
    mutationFn: (id: string) =>
      take(api.POST("/api/v1/webhooks/{webhook}/rotate", { params: { path: { webhook: id } } })),
    onSuccess: (made) => setOnce(made.signing_secret),
    onError: toastError,
  });
  const allowed = may("admin");
  return (
    <SettingsFrame admin={false}>
      <NewForm
        title="New webhook"
        recipe={{ curl: curl("POST", "/api/v1/webhooks", body()) }}
        action="Create"
        make={make}
      >
        <TextField
          label="Address"
          type="url"
          required
          value={url}
          onChange={(event) => setUrl(event.target.value)}
          placeholder="https://example.com/hook"
        />
        <TextField
          label="Events"
          required
          className="font-mono"
          value={events}
          onChange={(event) => setEvents(event.target.value)}
          hint="Kinds, separated by commas; * stands for any: task.*"
        />
        <SelectField label="Signing secret" value={secret} onChange={(event) => setSecret(event.target.value)}>
          <option value="">A new secret, shown once</option>
          {secrets.data?.items
            .filter((one) => !ofModels.has(one.name))
            .map((one) => (
              <option key={one.name}>{one.name}</option>
            ))}
        </SelectField>
        <TextField label="Description" value={description} onChange={(event) => setDescription(event.target.value)} />
      </NewForm>
      {change.error !== null && <ErrorBox error={change.error} />}
      <List
        title="Webhooks"
        query={query}
        head={["Address", "Events", "State", "Last success", ""]}
        empty={{
          icon: <Hook aria-hidden className="size-6" />,
          title: "No webhooks yet",
          text: "A webhook sends events of this project to another service, signed, and retries until the service accepts them.",
        }}
      >
        {(webhook) => {
          const { tone, word, why } = health(webhook);
          return (
            <tr key={webhook.id}>
              <Cell className="max-w-xs min-w-48">
                <span className="font-medium break-all">{plainText(webhook.url)}</span>
                {webhook.description !== "" && (
                  <span className="block text-xs text-dim">{plainText(webhook.description)}</span>
                )}
              </Cell>
              <Cell className="font-mono text-xs">{webhook.events.map(plainText).join(", ")}</Cell>
              <Cell>
                <Badge tone={tone}>{word}</Badge>
                {why !== undefined && <span className="block text-xs whitespace-nowrap text-dim">{why}</span>}
              </Cell>
              <Cell className="whitespace-nowrap text-dim">
                {webhook.last_success_at ? <Ago at={webhook.last_success_at} /> : "never"}
              </Cell>
              <Cell>
                <div className="flex justify-end gap-2">
                  <Button onClick={() => setLooking(webhook)}>Deliveries</Button>
                  {!webhook.secret && (
                    <Button
                      disabled={!allowed}
                      onClick={() => rotate.mutate(webhook.id)}
                      title="The old secret stops working at once"
                    >
                      New secret
                    </Button>
                  )}
                  <Button
                    disabled={!allowed}
                    onClick={() =>
                      change.mutate(
                        { id: webhook.id, enabled: !webhook.enabled },
                        { onSuccess: () => toast.success(webhook.enabled ? "Disabled" : "Enabled") },
                      )
                    }
                  >
                    {webhook.enabled ? "Disable" : "Enable"}
                  </Button>
                  <Button tone="quiet-danger" disabled={!allowed} onClick={() => setRemoving(webhook)}>
                    Remove
                  </Button>
                </div>
              </Cell>
            </tr>
          );
        }}
      </List>
      {looking !== undefined && <Deliveries webhook={looking} onClose={() => setLooking(undefined)} />}
      {once !== undefined && <ShownOnce secret={once} onClose={() => setOnce(undefined)} />}
      <Removal
        thing={removing}
        name={(webhook) => plainText(webhook.url)}
        onClose={() => setRemoving(undefined)}
        remove={async ({ id }) => {
          await take(api.DELETE("/api/v1/webhooks/{webhook}", { params: { path: { webhook: id } } }));
          await fresh();
        }}
      >
        Pending deliveries are dropped.
      </Removal>
    </SettingsFrame>
  );
}
