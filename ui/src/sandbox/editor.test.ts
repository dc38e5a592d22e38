import { describe, expect, it } from "vitest";
import { vscodeLink } from "./editor";

describe("vscodeLink", () => {
  it("names the host that ssh-config wrote, and no other", () => {
    expect(vscodeLink("01abc")).toBe("vscode://vscode-remote/ssh-remote+01abc.coffer/home/user?windowId=_blank");
    expect(vscodeLink("a/b?c")).toContain("ssh-remote+a%2Fb%3Fc.coffer/");
  });
});
