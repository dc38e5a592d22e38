/** An editor on the reader's machine, and the link that opens a sandbox in it by SSH. */
export type Editor = { name: string; link: (id: string) => string };

const HOME = "/home/user";

/** The host that `coffer ssh-config --write` makes known to SSH. */
function host(id: string): string {
  return `${encodeURIComponent(id)}.coffer`;
}

export const EDITORS: Editor[] = [
  {
    name: "VS Code",
    link: (id) => `vscode://vscode-remote/ssh-remote+${host(id)}${HOME}?windowId=_blank`,
  },
  {
    name: "Cursor",
    link: (id) => `cursor://vscode-remote/ssh-remote+${host(id)}${HOME}?windowId=_blank`,
  },
  { name: "Zed", link: (id) => `zed://ssh/${host(id)}${HOME}` },
  {
    // Gateway fills its form with this, and installs the IDE's backend when the reader goes on.
    name: "JetBrains Gateway",
    link: (id) =>
      `jetbrains-gateway://connect#type=ssh&deploy=true&host=${host(id)}&port=22&user=user&projectPath=${encodeURIComponent(HOME)}`,
  },
];
