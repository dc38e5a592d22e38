"""Answers on port 49999 as the code interpreter does, for the transcripts of `coffer code`."""

import http.server
import json

LINES = {
    "print": [{"type": "stdout", "text": "printed\n"}, {"type": "stderr", "text": "warned\n"}],
    "value": [{"type": "result", "text": "42", "extra": {}, "is_main_result": True}],
    "image": [{"type": "result", "png": "aGVsbG8=", "chart": {"type": "bar"}, "extra": {}, "is_main_result": False}],
    "raise": [{"type": "error", "name": "ValueError", "value": "no", "traceback": "Traceback:\nValueError: no"}],
}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer([json.dumps([{"id": "one", "language": "python", "cwd": "/home/user"}])])

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        count = {"type": "number_of_executions", "execution_count": 1}
        lines = [count, *LINES.get(asked["code"].strip(), []), {"type": "end_of_execution"}]
        self.answer([json.dumps(line) for line in lines])

    def answer(self, lines):
        body = ("\n".join(lines) + "\n").encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", 49999), Handler).serve_forever()
