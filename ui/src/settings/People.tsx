// The people of the project, links that sign them in, and the sessions of whoever looks.
import { useState, type FormEvent } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Copy, Monitor, Plus, UsersRound } from "lucide-react";
import { toast } from "sonner";
import { api, operatorApi, take, type Schemas } from "../api/client";
import { may, useSession } from "../api/session";
import { linkOf, refreshIdentity, signOut } from "../api/signIn";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { copyText, CopyAs, curl } from "../ui/CopyAs";
import { Confirm, Dialog } from "../ui/Dialog";
import { Empty, ErrorBox, Loaded } from "../ui/feedback";
import { SelectField, TextField } from "../ui/fields";
import { Card, Cell, Table } from "../ui/layout";
import { Ago } from "../ui/time";
import { SettingsFrame } from "./SettingsFrame";

type Person = Schemas["Person"];
type BrowserSession = Schemas["Session"];

/** A link for a colleague, which is shown once. */
function Invite({ person, token, onClose }: { person: string; token: string; onClose: () => void }) {
  const link = linkOf(token);
  return (
    <Dialog
      open
      onClose={onClose}
      title={`Sign-in link for ${person}`}
      description="It works once, within a day. Whoever opens it is signed in as this person."
    >
      <div className="flex items-center gap-2 rounded-md bg-raised p-3">
        <code className="min-w-0 flex-1 font-mono text-sm break-all">{link}</code>
        <Button
          aria-label="Copy the link"
          onClick={() => void copyText(link, "the link")}
          icon={<Copy aria-hidden className="size-4" />}
        />
      </div>
      <div className="mt-4 flex justify-end">
        <Button tone="primary" onClick={onClose}>
          Done
        </Button>
      </div>
    </Dialog>
  );
}

function NewPerson({ onClose, onMade }: { onClose: () => void; onMade: (person: Person) => void }) {
  const [name, setName] = useState("");
  const [role, setRole] = useState("write");
  const body = { name: name.trim(), role };
  const make = useMutation({ mutationFn: () => take(api.POST("/api/v1/people", { body })), onSuccess: onMade });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate();
  };
  return (
    <Dialog open onClose={onClose} title="Invite a person">
      <form onSubmit={submit} className="space-y-4">
        <TextField
          label="Name"
          required
          autoFocus
          maxLength={100}
          value={name}
          onChange={(event) => setName(event.target.value)}
          hint="Shown next to comments, reviews and in the audit log."
        />
        <SelectField label="Role" value={role} onChange={(event) => setRole(event.target.value)}>
          <option value="read">Read: look at the project</option>
          <option value="write">Write: also create and use sandboxes and tasks</option>
          <option value="admin">Admin: also change the project</option>
        </SelectField>
        {make.error !== null && <ErrorBox error={make.error} />}
        <div className="flex justify-end gap-2">
          <CopyAs recipe={{ curl: curl("POST", "/api/v1/people", body) }} />
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone="primary" busy={make.isPending}>
            Create the link
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

function MyName() {
  const queries = useQueryClient();
  const mine = useSession();
  const [name, setName] = useState(mine?.name ?? "");
  const save = useMutation({
    mutationFn: () => take(api.PUT("/api/v1/me/name", { body: { name: name.trim() } })),
    onSuccess: async () => {
      await refreshIdentity();
      for (const key of ["people", "actors"]) void queries.invalidateQueries({ queryKey: [key] });
      toast.success("Saved");
    },
  });
  if (mine?.operating) return null;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    save.mutate();
  };
  return (
    <Card title="Your name">
      <form onSubmit={submit} className="space-y-3 p-4">
        <div className="flex flex-wrap items-start gap-3">
          <div className="min-w-48 flex-1">
            <TextField
              label="Name"
              required
              maxLength={100}
              autoComplete="name"
              value={name}
              onChange={(event) => setName(event.target.value)}
              hint="Colleagues see it next to what you write, approve and start."
            />
          </div>
          <Button
            type="submit"
            tone="primary"
            className="mt-6"
            busy={save.isPending}
            disabled={name.trim() === (mine?.name ?? "")}
          >
            Save
          </Button>
        </div>
        {save.error !== null && <ErrorBox error={save.error} />}
      </form>
    </Card>
  );
}

function Sessions() {
  const queries = useQueryClient();
  const query = useQuery({ queryKey: ["sessions"], queryFn: () => take(operatorApi.GET("/api/v1/sessions")) });
  const [all, setAll] = useState(false);
  const end = useMutation({
    mutationFn: async (one: BrowserSession) => {
      if (one.current) return signOut();
      await take(operatorApi.DELETE("/api/v1/sessions/{session}", { params: { path: { session: one.id } } }));
    },
    onSuccess: () => queries.invalidateQueries({ queryKey: ["sessions"] }),
  });
  return (
    <Card
      title="Your sessions"
      actions={
        <Button tone="quiet-danger" onClick={() => setAll(true)}>
          Sign out everywhere
        </Button>
      }
    >
      <Loaded query={query}>
        {({ items }) =>
          items.length === 0 ? (
            <Empty icon={<Monitor aria-hidden className="size-6" />} title="No sessions" />
          ) : (
            <Table label="Your sessions" head={["Browser", "Network", "Last used", "Signed in", ""]}>
              {items.map((one) => (
                <tr key={one.id}>
                  <Cell className="font-medium">
                    {one.browser} {one.current && <Badge tone="ok">this browser</Badge>}
                  </Cell>
                  <Cell className="text-dim">{one.address}</Cell>
                  <Cell className="whitespace-nowrap text-dim">
                    <Ago at={one.last_used_at} />
                  </Cell>
                  <Cell className="whitespace-nowrap text-dim">
                    <Ago at={one.created_at} />
                  </Cell>
                  <Cell>
                    <div className="flex justify-end">
                      <Button onClick={() => end.mutate(one)}>{one.current ? "Sign out" : "End"}</Button>
                    </div>
                  </Cell>
                </tr>
              ))}
            </Table>
          )
        }
      </Loaded>
      {end.error !== null && <ErrorBox error={end.error} className="m-4" />}
      <Confirm
        open={all}
        onClose={() => setAll(false)}
        title="Sign out everywhere?"
        action="Sign out everywhere"
        danger
        onConfirm={() => signOut(true)}
      >
        Ends your sessions in all browsers, this one too, and your sign-in links that were not used yet.
      </Confirm>
    </Card>
  );
}

export function People() {
  const queries = useQueryClient();
  const session = useSession();
  const query = useQuery({ queryKey: ["people"], queryFn: () => take(api.GET("/api/v1/people")) });
  const [adding, setAdding] = useState(false);
  const [removing, setRemoving] = useState<Person>();
  const [invited, setInvited] = useState<{ person: string; token: string }>();
  const fresh = () => queries.invalidateQueries({ queryKey: ["people"] });
  const invite = useMutation({
    mutationFn: async (person: Person) => {
      const path = { person: person.id };
      const { token } = await take(api.POST("/api/v1/people/{person}/links", { params: { path }, body: null }));
      return { person: person.name, token };
    },
    onSuccess: setInvited,
  });
  return (
    <SettingsFrame
      admin={false}
      actions={
        <Button
          tone="primary"
          disabled={!may("admin")}
          onClick={() => setAdding(true)}
          icon={<Plus aria-hidden className="size-4" />}
        >
          Invite a person
        </Button>
      }
    >
      <MyName key={session?.name ?? ""} />
      <Card title="People">
        <Loaded query={query}>
          {({ items }) =>
            items.length === 0 ? (
              <Empty icon={<UsersRound aria-hidden className="size-6" />} title="No names yet">
                Invite a colleague, or enter your own name above: then comments and the audit log show names.
              </Empty>
            ) : (
              <Table label="People" head={["Name", "Role", "Added", ""]}>
                {items.map((person) => (
                  <tr key={person.id}>
                    <Cell className="font-medium">
                      {person.name} {session?.actor === `person:${person.id}` && <Badge tone="dim">you</Badge>}
                    </Cell>
                    <Cell>
                      <Badge tone={person.role === "admin" ? "warn" : "dim"}>{person.role}</Badge>
                    </Cell>
                    <Cell className="whitespace-nowrap text-dim">
                      <Ago at={person.created_at} />
                    </Cell>
                    <Cell>
                      {may("admin") && (
                        <div className="flex justify-end gap-2">
                          <Button onClick={() => invite.mutate(person)}>Sign-in link</Button>
                          {session?.actor !== `person:${person.id}` && (
                            <Button tone="quiet-danger" onClick={() => setRemoving(person)}>
                              Remove
                            </Button>
                          )}
                        </div>
                      )}
                    </Cell>
                  </tr>
                ))}
              </Table>
            )
          }
        </Loaded>
        {invite.error !== null && <ErrorBox error={invite.error} className="m-4" />}
      </Card>
      <Sessions />
      {adding && (
        <NewPerson
          onClose={() => setAdding(false)}
          onMade={(person) => {
            setAdding(false);
            void fresh();
            invite.mutate(person);
          }}
        />
      )}
      {invited !== undefined && (
        <Invite person={invited.person} token={invited.token} onClose={() => setInvited(undefined)} />
      )}
      <Confirm
        open={removing !== undefined}
        onClose={() => setRemoving(undefined)}
        title={`Remove ${removing?.name ?? ""}?`}
        action="Remove"
        danger
        onConfirm={async () => {
          await take(api.DELETE("/api/v1/people/{person}", { params: { path: { person: removing?.id ?? "" } } }));
          await fresh();
          toast.success("Removed");
        }}
      >
        Ends this person's sessions, links and keys at once. What they wrote keeps their name.
      </Confirm>
    </SettingsFrame>
  );
}
