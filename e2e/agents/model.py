"""A model that follows a script, for agents that are real: Anthropic's, OpenAI's (Chat and Responses) and Gemini's API.

Each conversation is the same: write a file with the client's own tool, run a line in its shell, say goodbye. Which tools
the client has and what they take is read from its request, so that a new version of a client seldom needs a change here.
Every call has the same usage. A line for each is in the ledger.

    model.py PORT LEDGER KEY [DIRECTORY]

DIRECTORY is where the client works, if this program is not in the same sandbox. PORT 0 is a free one, and is printed.

`MODE-…` in the prompt changes what happens: MODE-refused (401), MODE-overloaded (529, always), MODE-busy (529, 429 and 503,
then as usual), MODE-halfway (400 after the first tool), MODE-idle (no tool), MODE-slow (no answer after the first tool),
MODE-held (no first answer before `POST /release/RUN`). Without the key the answer is 401. `RUN-…` in the prompt is noted in
the ledger; `GET /run/RUN` says how many calls it made.
"""

import collections
import glob
import json
import pathlib
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FILE, CONTENT, LINE = "answer.txt", "42\n", "echo from the shell >> answer.txt"
WORDS = "I wrote answer.txt and ran a line in the shell."
# What each call costs, in tokens: fresh, read from a cache, written to one, said.
FRESH, READ, WRITTEN, SAID = 1000, 300, 50, 27
# A call without tools: a title, a summary.
ASIDE, ASIDE_SAID = 100, 5
WRITERS = ["write_file", "write", "create", "text_editor", "str_replace_based_edit_tool", "edit_file"]
SHELLS = ["run_shell_command", "exec_command", "shell_command", "local_shell", "bash", "shell", "run_command"]

# What MODE-busy answers first.
BUSY = [(529, "the model is overloaded"), (429, "too many requests"), (503, "try again")]
HELD_S = 120

LOCK = threading.Lock()
CALLS: collections.Counter[str] = collections.Counter()
RELEASED: dict[str, threading.Event] = collections.defaultdict(threading.Event)


def repository() -> pathlib.Path:
    """Where the client works. Without a word on it, this program is in the same sandbox."""
    if len(sys.argv) > 4:
        return pathlib.Path(sys.argv[4])
    found = glob.glob("/home/user/*/.git") + glob.glob("/home/user/*/*/.git") + glob.glob("/tmp/coffer-agent-test/.git")
    return pathlib.Path(found[0]).parent if found else pathlib.Path("/home/user")


def pick(tools: list[dict], names: list[str]) -> dict | None:
    """The tool whose name ends best: `developer__shell` is a shell."""
    for name in names:
        for tool in tools:
            if tool["name"].lower() == name or tool["name"].lower().endswith(f"__{name}"):
                return tool
    return None


def filled(schema: dict, kind: str) -> dict:
    """Arguments that a tool's schema asks for."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    path = str(repository() / FILE)
    done = {}
    for name, about in properties.items():
        low = name.lower()
        if kind == "write" and low in ("file_path", "filepath", "path", "absolute_path", "target_file"):
            done[name] = path
        elif kind == "write" and low in ("content", "file_text", "contents", "text", "code_edit"):
            done[name] = CONTENT
        elif kind == "write" and low == "command" and "enum" in about:
            done[name] = "write" if "write" in about["enum"] else "create"
        elif kind == "run" and low in ("command", "cmd", "script"):
            is_list = about.get("type") == "array"
            done[name] = ["bash", "-lc", LINE] if is_list else LINE
        elif name in required:
            done[name] = default(about)
    # Tools whose schema says nothing of this.
    if kind == "write" and not any(value == CONTENT for value in done.values()):
        done["file_text" if "command" in done else "content"] = CONTENT
    return done


def default(about: dict):
    if about.get("enum"):
        return about["enum"][0]
    kind = about.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    return {"boolean": False, "integer": 10000, "number": 10000, "array": [], "object": {}}.get(
        str(kind).lower(), "write the answer"
    )


class Call:
    """One request, whatever its API."""

    def __init__(self, tools: list[dict], results: int, text: str):
        self.tools, self.results, self.text = tools, results, text
        self.mode = (re.findall(r"MODE-([a-z]+)", text) or ["usual"])[-1]
        self.run = (re.findall(r"RUN-([0-9a-f]+)", text) or [""])[-1]
        self.is_aside = not tools and "SEARCH/REPLACE" not in text and "entire content of the file" not in text
        # A client without tools asks once.
        self.is_under_way = results > 0 or (not tools and not self.is_aside)
        self.tool, self.arguments, self.words = None, {}, WORDS
        writer, shell = pick(tools, WRITERS), pick(tools, SHELLS)
        asks_for_ok = "Answer with the word ok" in text
        if self.is_aside:
            self.words = "A title"
        elif asks_for_ok:
            self.words = "ok"
        elif self.mode == "idle":
            self.words = "There is nothing to do."
        elif not tools:
            self.words = edit_block(text)
        elif results == 0 and writer:
            self.tool, self.arguments = writer["name"], filled(writer["schema"], "write")
        elif results == 0 and shell:
            self.tool, self.arguments = shell["name"], filled(shell["schema"], "run")
            # A client whose shell is its only way to write.
            line = f"printf '42\\n' > {repository() / FILE}"
            self.arguments = json.loads(
                json.dumps(self.arguments).replace(json.dumps(LINE)[1:-1], json.dumps(line)[1:-1])
            )
        elif results == 1 and shell:
            self.tool, self.arguments = shell["name"], filled(shell["schema"], "run")

    def usage(self) -> tuple[int, int, int, int]:
        return (ASIDE, 0, 0, ASIDE_SAID) if self.is_aside else (FRESH, READ, WRITTEN, SAID)


def edit_block(text: str) -> str:
    """For clients that read edits from the text."""
    lines = CONTENT + "from the shell\n"
    if "SEARCH/REPLACE" in text:
        return f"{WORDS}\n\n{FILE}\n```\n<<<<<<< SEARCH\n=======\n{lines}>>>>>>> REPLACE\n```\n"
    return f"{WORDS}\n\n{FILE}\n```\n{lines}```\n"


def texts(value) -> str:
    """All text of a request."""
    if isinstance(value, str):
        return value + "\n"
    if isinstance(value, dict):
        return "".join(texts(part) for name, part in value.items() if name != "tools")
    if isinstance(value, list):
        return "".join(map(texts, value))
    return ""


def count(value, kinds: tuple[str, ...]) -> int:
    """How many results of tools a conversation has."""
    if isinstance(value, dict):
        own = value.get("type") in kinds or value.get("role") in kinds or any(kind in value for kind in kinds)
        return int(own) + sum(count(part, kinds) for name, part in value.items() if name != "tools")
    if isinstance(value, list):
        return sum(count(part, kinds) for part in value)
    return 0


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    ledger, key = pathlib.Path("/dev/null"), ""

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(200, {})

    def do_GET(self):
        if self.path.startswith("/run/"):
            return self.answer(200, {"calls": CALLS[self.path.removeprefix("/run/")]})
        models = [{"id": "scripted", "object": "model", "name": "scripted", "created": 0, "owned_by": "test"}]
        return self.answer(200, {"object": "list", "data": models, "models": models, "has_more": False})

    def do_POST(self):
        length = int(self.headers.get("content-length") or 0)
        try:
            body = json.loads(self.rfile.read(length) or b"{}")
        except ValueError:
            return self.answer(400, {"error": {"message": "no JSON"}})
        path = self.path.split("?")[0]
        if path.startswith("/release/"):
            RELEASED[path.removeprefix("/release/")].set()
            return self.answer(200, {})
        if path.endswith(("/count_tokens", ":countTokens")):
            return self.answer(200, {"input_tokens": 100, "totalTokens": 100})
        for ending, speak in (
            ("/messages", self.speak_anthropic),
            ("/chat/completions", self.speak_chat),
            ("/responses", self.speak_responses),
            (":streamGenerateContent", self.speak_gemini),
            (":generateContent", self.speak_gemini),
        ):
            if path.endswith(ending):
                return speak(body, ending)
        return self.answer(404, {"error": {"message": f"no such path: {path}"}})

    # What goes wrong.

    def trouble(self, call: Call, model: str | None) -> bool:
        given = self.headers.get("x-api-key") or self.headers.get("x-goog-api-key") or ""
        given = given or (self.headers.get("authorization") or "").removeprefix("Bearer ")
        given = given or (re.findall(r"[?&]key=([^&]+)", self.path) or [""])[0]
        status, message = None, ""
        with LOCK:
            before = CALLS[call.run]
            CALLS[call.run] += not call.is_aside
        if call.mode == "refused" or given != self.key:
            status, message = 401, "the key is invalid"
        elif call.mode == "overloaded":
            status, message = BUSY[0]
        elif call.mode == "busy" and not call.is_aside and before < len(BUSY):
            status, message = BUSY[before]
        elif call.mode == "halfway" and call.is_under_way:
            status, message = 400, "the script ends here"
        if status:
            self.note(call, status, model)
            kind = {401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}
            kind |= {400: "invalid_request_error"}
            kind = kind.get(status, "api_error")
            named = "UNAUTHENTICATED" if status == 401 else kind.upper()
            error = {"type": kind, "message": message, "code": status, "status": named}
            self.answer(status, {"type": "error", "error": error}, {"retry-after": "1"} if status == 429 else {})
            return True
        if call.mode == "held" and before == 0 and not call.is_aside:
            RELEASED[call.run].wait(HELD_S)
        if call.mode == "slow" and call.is_under_way:
            time.sleep(3600)
        self.note(call, 200, model)
        return False

    def note(self, call: Call, status: int, model: str | None):
        fresh, read, written, said = call.usage() if status == 200 else (0, 0, 0, 0)
        # Anthropic's clients alone pay for what is written to a cache.
        if not self.path.split("?")[0].endswith("/messages"):
            written = 0
        line = {"run": call.run, "path": self.path.split("?")[0], "model": model, "status": status,
                "aside": call.is_aside, "tool": call.tool,
                "fresh": fresh, "read": read, "written": written, "said": said}  # fmt: skip
        with LOCK, self.ledger.open("a") as file:
            file.write(json.dumps(line) + "\n")

    # How it is said.

    def answer(self, status: int, body: dict, headers: dict[str, str] | None = None):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def stream(self, events: list[tuple[str | None, dict | str]]):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for name, data in events:
            text = data if isinstance(data, str) else json.dumps(data)
            head = f"event: {name}\n" if name else ""
            self.wfile.write(f"{head}data: {text}\n\n".encode())
            self.wfile.flush()
        self.close_connection = True

    def speak_anthropic(self, body: dict, _):
        tools = [
            {"name": tool["name"], "schema": tool.get("input_schema", {})}
            for tool in body.get("tools", [])
            if "name" in tool
        ]
        call = Call(tools, count(body.get("messages"), ("tool_result",)), texts(body))
        if self.trouble(call, body.get("model")):
            return None
        fresh, read, written, said = call.usage()
        usage = {
            "input_tokens": fresh,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "output_tokens": said,
        }
        block = {"type": "text", "text": call.words}
        if call.tool:
            block = {"type": "tool_use", "id": f"toolu_{call.results}", "name": call.tool, "input": call.arguments}
        why = "tool_use" if call.tool else "end_turn"
        message = {"id": f"msg_{call.results}", "type": "message", "role": "assistant", "model": body.get("model", "scripted"),
                   "content": [block], "stop_reason": why, "stop_sequence": None, "usage": usage}  # fmt: skip
        if not body.get("stream"):
            return self.answer(200, message)
        empty = {**block, "input": {}} if call.tool else {"type": "text", "text": ""}
        delta = (
            {"type": "input_json_delta", "partial_json": json.dumps(call.arguments)}
            if call.tool
            else {"type": "text_delta", "text": call.words}
        )
        begin = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
        self.stream([
            ("message_start", {"type": "message_start", "message": begin}),
            ("content_block_start", {"type": "content_block_start", "index": 0, "content_block": empty}),
            ("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}),
            ("content_block_stop", {"type": "content_block_stop", "index": 0}),
            ("message_delta", {"type": "message_delta", "delta": {"stop_reason": why, "stop_sequence": None}, "usage": usage}),
            ("message_stop", {"type": "message_stop"}),
        ])  # fmt: skip

    def speak_chat(self, body: dict, _):
        tools = [
            {"name": tool["function"]["name"], "schema": tool["function"].get("parameters", {})}
            for tool in body.get("tools") or []
            if "function" in tool
        ]
        call = Call(tools, count(body.get("messages"), ("tool",)), texts(body))
        if self.trouble(call, body.get("model")):
            return None
        fresh, read, _written, said = call.usage()
        prompt = fresh + read
        usage = {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said,
                 "prompt_tokens_details": {"cached_tokens": read}}  # fmt: skip
        tool = {"index": 0, "id": f"call_{call.results}", "type": "function",
                "function": {"name": call.tool, "arguments": json.dumps(call.arguments)}}  # fmt: skip
        message = (
            {"role": "assistant", "content": None, "tool_calls": [tool]}
            if call.tool
            else {"role": "assistant", "content": call.words}
        )
        why = "tool_calls" if call.tool else "stop"
        base = {"id": f"chat_{call.results}", "created": int(time.time()), "model": body.get("model", "scripted")}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": why}
            return self.answer(200, {**base, "object": "chat.completion", "choices": [choice], "usage": usage})
        chunk = {**base, "object": "chat.completion.chunk"}
        self.stream([
            (None, {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]}),
            (None, {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": why}]}),
            (None, {**chunk, "choices": [], "usage": usage}),
            (None, "[DONE]"),
        ])  # fmt: skip

    def speak_responses(self, body: dict, _):
        known = [tool for tool in body.get("tools") or [] if tool.get("type") in ("function", "local_shell")]
        tools = [{"name": tool.get("name", tool["type"]), "schema": tool.get("parameters", {})} for tool in known]
        results = count(
            body.get("input"), ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
        )
        call = Call(tools, results, texts(body))
        if self.trouble(call, body.get("model")):
            return None
        fresh, read, _written, said = call.usage()
        prompt = fresh + read
        usage = {"input_tokens": prompt, "input_tokens_details": {"cached_tokens": read}, "output_tokens": said,
                 "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": prompt + said}  # fmt: skip
        if call.tool:
            item = {"type": "function_call", "id": f"fc_{results}", "call_id": f"call_{results}", "name": call.tool,
                    "arguments": json.dumps(call.arguments), "status": "completed"}  # fmt: skip
        else:
            item = {"type": "message", "id": f"msg_{results}", "role": "assistant", "status": "completed",
                    "content": [{"type": "output_text", "text": call.words, "annotations": []}]}  # fmt: skip
        done = {"id": f"resp_{results}", "object": "response", "created_at": int(time.time()), "status": "completed",
                "model": body.get("model", "scripted"), "output": [item], "usage": usage}  # fmt: skip
        if not body.get("stream"):
            return self.answer(200, done)
        begun = {**done, "status": "in_progress", "output": [], "usage": None}
        steps = [
            ("response.created", {"response": begun}),
            ("response.output_item.added", {"output_index": 0, "item": item}),
        ]
        if not call.tool:
            part = {"item_id": item["id"], "output_index": 0, "content_index": 0}
            steps.append(("response.output_text.delta", {**part, "delta": call.words}))
        steps += [
            ("response.output_item.done", {"output_index": 0, "item": item}),
            ("response.completed", {"response": done}),
        ]
        self.stream([(name, {"type": name, "sequence_number": at, **data}) for at, (name, data) in enumerate(steps)])

    def speak_gemini(self, body: dict, ending: str):
        declared = [one for tool in body.get("tools") or [] for one in tool.get("functionDeclarations", [])]
        tools = [
            {"name": one["name"], "schema": one.get("parametersJsonSchema") or one.get("parameters") or {}}
            for one in declared
        ]
        call = Call(tools, count(body.get("contents"), ("functionResponse",)), texts(body))
        model = self.path.split("?")[0].rpartition("/")[2].partition(":")[0]
        if self.trouble(call, model):
            return None
        fresh, read, _, said = call.usage()
        thought = 7 if said > 7 else 0
        prompt = fresh + read
        usage = {"promptTokenCount": prompt, "cachedContentTokenCount": read, "candidatesTokenCount": said - thought,
                 "thoughtsTokenCount": thought, "totalTokenCount": prompt + said}  # fmt: skip
        part = {"functionCall": {"name": call.tool, "args": call.arguments}} if call.tool else {"text": call.words}
        if not tools and "json" in str(body.get("generationConfig", {}).get("responseMimeType", "")):
            part = {
                "text": json.dumps(
                    {"reasoning": "scripted", "next_speaker": "user", "model_choice": "flash", "complexity_score": 1}
                )
            }
        done = {"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
                "usageMetadata": usage, "modelVersion": "scripted"}  # fmt: skip
        if ending == ":generateContent":
            return self.answer(200, done)
        self.stream([(None, done)])


def main():
    port, ledger, Model.key = int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    Model.ledger = ledger
    ledger.touch()
    server = ThreadingHTTPServer(("127.0.0.1", port), Model)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
