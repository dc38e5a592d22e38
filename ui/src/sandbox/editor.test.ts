import { describe, expect, it } from "vitest";
import { EDITORS } from "./editor";

function link(name: string, id: string): string {
  return EDITORS.find((editor) => editor.name === name)?.link(id) ?? "";
}

describe("links to editors", () => {
  it("name the host that ssh-config wrote, and the home", () => {
    expect(link("VS Code", "01abc")).toBe("vscode://vscode-remote/ssh-remote+01abc.coffer/home/user?windowId=_blank");
    expect(link("Cursor", "01abc")).toBe("cursor://vscode-remote/ssh-remote+01abc.coffer/home/user?windowId=_blank");
    expect(link("Zed", "01abc")).toBe("zed://ssh/01abc.coffer/home/user");
    expect(link("JetBrains Gateway", "01abc")).toBe(
      "jetbrains-gateway://connect#type=ssh&deploy=true&host=01abc.coffer&port=22&user=user&projectPath=%2Fhome%2Fuser",
    );
  });

  it("cannot be led to another host or given another option", () => {
    for (const { link } of EDITORS) {
      expect(link("a/b?c&host=evil")).toContain("a%2Fb%3Fc%26host%3Devil.coffer");
    }
  });
});
