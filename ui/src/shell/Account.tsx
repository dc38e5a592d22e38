// The account menu: the session, the look of the pages, and how this browser tells of work.
import { useState, type ReactNode } from "react";
import { DropdownMenu } from "radix-ui";
import {
  Bell,
  BellRing,
  Check,
  Keyboard,
  Link2,
  LogOut,
  Monitor,
  Moon,
  Sun,
  UserRound,
  UsersRound,
} from "lucide-react";
import { toast } from "sonner";
import { useNavigate } from "@tanstack/react-router";
import { useSession } from "../api/session";
import { createSignInLink, signOut } from "../api/signIn";
import { SOUND, DESKTOP } from "../tasks/Attention";
import { Button } from "../ui/Button";
import { copyText } from "../ui/CopyAs";
import { toastError } from "../ui/feedback";
import { setTheme, useTheme, type Theme } from "./theme";

const ITEM = "flex items-center gap-2 rounded-md px-2 py-1.5 outline-none data-[highlighted]:bg-raised";

function ThemeItems() {
  const theme = useTheme();
  const choices: [Theme, string, typeof Sun][] = [
    ["light", "Light", Sun],
    ["dark", "Dark", Moon],
    ["system", "Same as the system", Monitor],
  ];
  return (
    <DropdownMenu.RadioGroup value={theme} onValueChange={(value) => setTheme(value as Theme)}>
      {choices.map(([value, name, Icon]) => (
        <DropdownMenu.RadioItem
          key={value}
          value={value}
          className={`${ITEM} data-[state=checked]:font-medium data-[state=checked]:text-accent`}
        >
          <Icon aria-hidden className="size-4" />
          {name}
        </DropdownMenu.RadioItem>
      ))}
    </DropdownMenu.RadioGroup>
  );
}

function Choice({
  icon,
  checked,
  onChange,
  children,
}: {
  icon: ReactNode;
  checked: boolean;
  onChange: (on: boolean) => void;
  children: ReactNode;
}) {
  return (
    <DropdownMenu.CheckboxItem
      checked={checked}
      onCheckedChange={onChange}
      onSelect={(event) => event.preventDefault()}
      className={`${ITEM} data-[state=checked]:text-accent`}
    >
      {icon}
      <span className="min-w-0 flex-1">{children}</span>
      {checked && <Check aria-hidden className="size-4" />}
    </DropdownMenu.CheckboxItem>
  );
}

/** A choice of this browser, in localStorage. */
function useChoice(name: string): [boolean, (on: boolean) => void] {
  const [on, setOn] = useState(() => localStorage.getItem(name) === "yes");
  return [
    on,
    (next) => {
      localStorage.setItem(name, next ? "yes" : "no");
      setOn(next);
    },
  ];
}

function Notices() {
  const [sound, setSound] = useChoice(SOUND);
  const [desktop, setDesktop] = useChoice(DESKTOP);
  const askBrowser = async (on: boolean) => {
    if (on && (typeof Notification === "undefined" || (await Notification.requestPermission()) !== "granted")) {
      toast.error("This browser does not allow notifications from this page", {
        description: "Allow them in the browser's settings for this site. They need https or localhost.",
      });
      return setDesktop(false);
    }
    setDesktop(on);
  };
  return (
    <>
      <Choice
        icon={<BellRing aria-hidden className="size-4" />}
        checked={desktop}
        onChange={(on) => void askBrowser(on)}
      >
        Browser notifications
      </Choice>
      <Choice icon={<Bell aria-hidden className="size-4" />} checked={sound} onChange={setSound}>
        Sound when a task needs you
      </Choice>
    </>
  );
}

async function copyLink() {
  try {
    await copyText(await createSignInLink(), "a sign-in link: it works once, within two minutes");
  } catch (error) {
    toastError(error);
  }
}

export function Account({ onShortcuts }: { onShortcuts: () => void }) {
  const session = useSession();
  const navigate = useNavigate();
  const project = session?.project;
  return (
    <DropdownMenu.Root>
      <DropdownMenu.Trigger asChild>
        <Button tone="ghost" aria-label="Account and appearance" icon={<UserRound aria-hidden className="size-4" />} />
      </DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content align="end" className="z-50 w-72 rounded-lg border border-line bg-surface p-1 shadow-lg">
          <div className="px-2 py-1.5 text-xs text-dim">
            {session?.name !== undefined && <p className="truncate text-sm font-medium text-ink">{session.name}</p>}
            {session?.operating ? "Operator" : `${project?.role ?? ""} in ${project?.projectName ?? ""}`}
          </div>
          <DropdownMenu.Separator className="my-1 h-px bg-line" />
          {project !== undefined && (
            <DropdownMenu.Item onSelect={() => void copyLink()} className={ITEM}>
              <Link2 aria-hidden className="size-4" />
              Copy a sign-in link
            </DropdownMenu.Item>
          )}
          {project !== undefined && (
            <DropdownMenu.Item onSelect={() => void navigate({ to: "/settings/people" })} className={ITEM}>
              <UsersRound aria-hidden className="size-4" />
              {session?.name === undefined && !session?.operating ? "Your name and sessions" : "People and sessions"}
            </DropdownMenu.Item>
          )}
          <DropdownMenu.Separator className="my-1 h-px bg-line" />
          <Notices />
          <DropdownMenu.Separator className="my-1 h-px bg-line" />
          <ThemeItems />
          <DropdownMenu.Separator className="my-1 h-px bg-line" />
          <DropdownMenu.Item onSelect={onShortcuts} className={ITEM}>
            <Keyboard aria-hidden className="size-4" />
            Keyboard shortcuts
          </DropdownMenu.Item>
          <DropdownMenu.Item onSelect={() => void signOut()} className={ITEM}>
            <LogOut aria-hidden className="size-4" />
            Sign out
          </DropdownMenu.Item>
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}
