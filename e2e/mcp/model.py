"""A model that follows a script: enough of Anthropic's Messages API for one tool call and an answer, on loopback."""

import http.server
import json
import threading


def stream(blocks: list[dict], stop: str) -> bytes:
    """One message as the events of a stream."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
    events = [{"type": "message_start", "message": message}]
    for index, block in enumerate(blocks):
        if block["type"] == "tool_use":
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        else:
            empty, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": stop, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ended, "usage": {"output_tokens": 1}})
    events.append({"type": "message_stop"})
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


class Model:
    """Calls `tool` once with `arguments` when it is offered, and then says `said` and what the tool returned."""

    def __init__(self, tool: str, arguments: dict, said: str):
        self.tool, self.arguments, self.said = tool, arguments, said
        self.offered: set[str] = set()
        self.results: list[str] = []
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def _next(self, request: dict) -> tuple[list[dict], str]:
        offered = {tool["name"] for tool in request.get("tools", [])}
        self.offered |= offered
        last = request["messages"][-1]["content"]
        results = [part for part in last if part.get("type") == "tool_result"] if isinstance(last, list) else []
        if results:
            self.results += [json.dumps(part["content"]) for part in results]
            return [{"type": "text", "text": self.said}], "end_turn"
        if self.tool in offered:
            call = {"type": "tool_use", "id": "toolu_1", "name": self.tool, "input": self.arguments}
            return [call], "tool_use"
        # Requests besides the conversation: a title, a warm-up.
        return [{"type": "text", "text": "ok"}], "end_turn"

    def _handler(model):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
                if self.path.split("?")[0] != "/v1/messages":
                    return self._send(b'{"input_tokens": 1}', "application/json")
                blocks, stop = model._next(request)
                if request.get("stream"):
                    return self._send(stream(blocks, stop), "text/event-stream")
                usage = {"input_tokens": 1, "output_tokens": 1}
                whole = {"id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "usage": usage}
                whole |= {"content": blocks, "stop_reason": stop, "stop_sequence": None}
                self._send(json.dumps(whole).encode(), "application/json")

            def do_GET(self):
                self._send(b"{}", "application/json")

            do_HEAD = do_GET

            def _send(self, body: bytes, kind: str):
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler
