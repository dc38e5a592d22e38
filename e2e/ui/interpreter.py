"""Stands in for the code interpreter in a sandbox without its template: a cell's code is the list of lines that it answers.

A line `{"wait": true}` waits until the client has left.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTEXTS = [{"id": "one", "language": "python", "cwd": "/home/user"}]
count = 0
restarted = 0


class Interpreter(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(CONTEXTS if self.path == "/contexts" else "OK")

    def do_POST(self):
        global count, restarted
        asked = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.endswith("/restart"):
            count, restarted = 0, restarted + 1
            return self.answer(None)
        count += 1
        lines = [{"type": "number_of_executions", "execution_count": count}]
        lines += [*json.loads(json.loads(asked)["code"]), {"type": "end_of_execution"}]
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines:
            while line.get("wait") and not threading.Event().wait(0.1):
                self.say({"type": "keepalive"})
            self.say(line)
        self.wfile.write(b"0\r\n\r\n")

    def say(self, line):
        data = json.dumps(line).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


ThreadingHTTPServer(("0.0.0.0", 49999), Interpreter).serve_forever()
