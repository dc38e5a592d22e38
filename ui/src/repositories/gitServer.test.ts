import { expect, test } from "vitest";
import { gitAddress, gitName } from "./gitServer";

test("an address of a git server is taken apart", () => {
  expect(gitAddress(" https://Git.Example.com:8443/team/sub/app.git/ ")).toEqual({
    origin: "https://git.example.com:8443",
    host: "git.example.com",
    path: "team/sub/app.git",
  });
  expect(gitAddress("https://git.example.com:443/app")?.origin).toBe("https://git.example.com");
  expect(gitName("team/sub/app.git")).toBe("app");
});

test.each([
  "",
  "git.example.com/app",
  "http://git.example.com/app",
  "https://git.example.com/",
  "https://ada:secret@git.example.com/app",
  "https://git.example.com/app?x=1",
  "ssh://git@git.example.com/app",
])("%s is none", (text) => {
  expect(gitAddress(text)).toBeUndefined();
});
