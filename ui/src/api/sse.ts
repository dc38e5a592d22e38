// Server-sent events over fetch: EventSource cannot send the key.

export interface SseEvent {
  id?: string;
  event: string;
  data: string;
}

/** Collects the text of a stream into events; an event may arrive in pieces. */
export class SseParser {
  private rest = "";
  private id: string | undefined;
  private event = "";
  private data: string[] = [];

  add(text: string): SseEvent[] {
    const events: SseEvent[] = [];
    this.rest += text;
    for (;;) {
      const end = /\r\n|\n|\r(?!$)/.exec(this.rest);
      if (end === null) return events;
      const line = this.rest.slice(0, end.index);
      this.rest = this.rest.slice(end.index + end[0].length);
      const done = this.line(line);
      if (done !== undefined) events.push(done);
    }
  }

  private line(line: string): SseEvent | undefined {
    if (line === "") {
      const complete = this.data.length > 0 || this.event !== "";
      const made = { id: this.id, event: this.event || "message", data: this.data.join("\n") };
      this.event = "";
      this.data = [];
      return complete ? made : undefined;
    }
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
    if (field === "data") this.data.push(value ?? "");
    else if (field === "event") this.event = value ?? "";
    else if (field === "id") this.id = value;
    return undefined;
  }
}

/** Reads a stream to its end and tells of each event. */
export async function readEvents(response: Response, tell: (event: SseEvent) => void): Promise<void> {
  if (response.body === null) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new SseParser();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    for (const event of parser.add(value)) tell(event);
  }
}
