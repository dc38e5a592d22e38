// An upload that tells how far it is: fetch cannot.
import { ifSignedOut, toError, unreachable } from "./client";
import { proof } from "./session";

/** Sends bytes without holding them in memory. Returns the answer's JSON, or throws the server's refusal. */
export function send(
  method: "POST" | "PUT",
  path: string,
  body: Blob,
  progress: (sent: number, total: number) => void,
): Promise<unknown> {
  const mine = proof();
  return new Promise((done, failed) => {
    const request = new XMLHttpRequest();
    request.open(method, path);
    request.responseType = "json";
    request.setRequestHeader("content-type", "application/octet-stream");
    for (const [name, value] of Object.entries(mine)) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => event.lengthComputable && progress(event.loaded, event.total);
    request.onerror = () => failed(unreachable(method));
    request.onload = () => {
      const { status, response: answer } = request as { status: number; response: unknown };
      if (status >= 200 && status < 300) return done(answer);
      ifSignedOut(status, mine["X-Coffer-Session"]);
      failed(toError(answer, new Response(null, { status, headers: headersOf(request) })));
    };
    request.send(body);
  });
}

function headersOf(request: XMLHttpRequest): Headers {
  const headers = new Headers();
  for (const name of ["retry-after", "x-request-id"]) {
    const value = request.getResponseHeader(name);
    if (value !== null) headers.set(name, value);
  }
  return headers;
}
