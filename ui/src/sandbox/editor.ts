/** Opens a window of VS Code in the sandbox, by its Remote - SSH. */
export function vscodeLink(id: string): string {
  return `vscode://vscode-remote/ssh-remote+${encodeURIComponent(id)}.coffer/home/user?windowId=_blank`;
}
