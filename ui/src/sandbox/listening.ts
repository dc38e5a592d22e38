/** The ports that listen, from the text of `/proc/net/tcp` or `tcp6`. */
export function listening(table: string): number[] {
  const ports: number[] = [];
  for (const line of table.split("\n").slice(1, 5000)) {
    const [, local, , state] = line.trim().split(/\s+/);
    const port = Number.parseInt(local?.split(":").at(-1) ?? "", 16);
    if (state === "0A" && port > 0 && port < 65536) ports.push(port);
  }
  return ports;
}
