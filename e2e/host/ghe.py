"""A GitHub Enterprise of the test's own on this machine's loopback: TLS by an authority of its own, requests held to
GitHub's published description, real git behind it, and a nameserver that knows where it is."""

import base64
import http.server
import json
import os
import pathlib
import socket
import ssl
import subprocess
import threading
import urllib.parse

from coffer_up import ROOT

# The name must be one that this machine knows too: the server asks the machine, egress asks the nameserver below.
NAME = "localhost"
DESCRIPTION = json.loads((ROOT / "crates/coffer-testkit/src/github/openapi.json").read_text())["operations"]
PLAIN = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
}


def git(at: pathlib.Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=at, env=PLAIN, capture_output=True, text=True)
    assert done.returncode == 0, f"git {words}: {done.stderr}"
    return done.stdout.strip()


def certify(scratch: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """An authority, and a certificate for the name with its key."""
    authority, key, leaf = scratch / "authority.pem", scratch / "authority-key.pem", scratch / "leaf-key.pem"
    request = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    subject = ["-subj", "/CN=A company's authority", "-keyout", key, "-out", authority]
    subprocess.run([*request, *subject], check=True, capture_output=True)
    of = ["-CA", authority, "-CAkey", key, "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    of += ["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", leaf, "-out", scratch / "leaf.pem"]
    subprocess.run([*request, *of], check=True, capture_output=True)
    leaf.write_bytes(leaf.read_bytes() + (scratch / "leaf.pem").read_bytes())
    return authority, leaf


def flaws(schema: dict, value, at: str) -> list[str]:
    """What of a value the description does not allow; what it does not name is not allowed."""
    if value is None and schema.get("nullable"):
        return []
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    kind = kinds.get(type(value), "null")
    found = []
    for several in ("oneOf", "anyOf"):
        options = schema.get(several, [])
        if options and all(
            flaws(option, value, at) for option in options if "type" in option or "properties" in option
        ):
            found.append(f"{at}: fits none of {several}")
    wanted = schema.get("type")
    if wanted and wanted != kind and not (wanted == "number" and kind == "integer"):
        return [*found, f"{at}: is {kind}, not {wanted}"]
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is none of {schema['enum']}")
    if kind == "array":
        for item in value:
            found += flaws(schema.get("items", {}), item, f"{at}[]")
    if kind == "object":
        known = schema.get("properties")
        for name, inner in value.items():
            if known is not None and name not in known:
                found.append(f"{at}: no property {name!r}")
            elif known is not None:
                found += flaws(known[name], inner, f"{at}.{name}")
        found += [f"{at}: {name!r} is missing" for name in schema.get("required", []) if name not in value]
    return found


class Enterprise:
    """With one repository, `octo/app`, that has a commit on `main`, which is protected."""

    def __init__(self, scratch: pathlib.Path):
        self.root = scratch / "repositories"
        self.tokens = {"ghp_canary_0123456789abcdef"}
        self.flaws: list[str] = []
        self.asked: list[str] = []
        self.pulls: list[dict] = []
        # What becomes of the next requests: of the API `(status, headers, body)`, of pushes `before` or `after`, where
        # the connection ends before the push is taken or after.
        self.moods: list[tuple[int, dict, dict]] = []
        self.drops: list[str] = []
        self.dead = False
        # Objects of Git LFS, and those whose upload was verified. Where they are, another credential is good.
        self.objects: dict[str, bytes] = {}
        self.verified: set[str] = set()
        self.remote_auth = "RemoteAuth " + "5e" * 20
        self.lock = threading.Lock()
        self.bare = self.add("app")
        self.authority, leaf = certify(scratch)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(leaf)
        handler = type("Handler", (Handler,), {"forge": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.port = self.server.server_address[1]
        # Where large files are, which is another place than where the repositories are.
        self.storage = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.storage_port = self.storage.server_address[1]
        for server in (self.server, self.storage):
            server.daemon_threads = True
            server.socket = context.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, daemon=True).start()
        self.names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.names.bind(("127.0.0.1", 0))
        threading.Thread(target=self._serve_names, daemon=True).start()

    @property
    def url(self) -> str:
        return f"https://{NAME}:{self.port}/api/v3"

    @property
    def nameserver(self) -> str:
        return f"127.0.0.1:{self.names.getsockname()[1]}"

    def add(self, name: str) -> pathlib.Path:
        """A repository with one commit on main."""
        bare, work = self.root / f"octo/{name}.git", self.root / f"work-{name}"
        bare.mkdir(parents=True)
        git(bare, "init", "--quiet", "--bare", "--initial-branch=main", ".")
        git(bare, "config", "http.receivepack", "true")
        git(self.root, "clone", "--quiet", str(bare), str(work))
        (work / "README").write_text("hello\n")
        git(work, "checkout", "--quiet", "-B", "main")
        git(work, "add", "--all")
        git(work, "commit", "--quiet", "--message", "feat: begin")
        git(work, "push", "--quiet", "origin", "main")
        return bare

    def tip(self, branch: str) -> str | None:
        return git(self.bare, "for-each-ref", "--format=%(objectname)", f"refs/heads/{branch}") or None

    def stop(self):
        for server in (self.server, self.storage):
            server.shutdown()
            server.server_close()
        self.names.close()

    def _serve_names(self):
        while True:
            try:
                question, asker = self.names.recvfrom(512)
            except OSError:
                return
            at, labels = 12, []
            while question[at]:
                labels.append(question[at + 1 : at + 1 + question[at]].decode())
                at += 1 + question[at]
            section = question[12 : at + 5]
            is_ours = ".".join(labels).lower() == NAME
            is_v4 = question[at + 1 : at + 3] == b"\0\1"
            answer = b"\xc0\x0c\0\1\0\1\0\0\0\x1e\0\4\x7f\0\0\1" if is_ours and is_v4 else b""
            head = question[:2] + (b"\x81\x80" if is_ours else b"\x81\x83") + b"\0\1"
            head += (b"\0\1" if answer else b"\0\0") + b"\0\0\0\0"
            self.names.sendto(head + section + answer, asker)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    forge: Enterprise

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer()

    do_POST = do_PUT = do_PATCH = do_GET

    def body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def reply(self, status: int, body: bytes, headers: dict):
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def hang_up(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def answer(self):
        path, _, query = self.path.partition("?")
        body = self.body()
        if self.forge.dead:
            return self.hang_up()
        if path.startswith("/storage/"):
            return self.serve_storage(path.removeprefix("/storage/"), body)
        if not path.startswith("/api/v3/"):
            return self.serve_git(path, query, body)
        rest = path.removeprefix("/api/v3")
        with self.forge.lock:
            self.forge.asked.append(f"{self.command} {rest}")
            mood = self.forge.moods.pop(0) if self.forge.moods else None
        status, headers, told = mood or self.act(rest, dict(urllib.parse.parse_qsl(query)), body)
        self.reply(status, json.dumps(told).encode(), {"content-type": "application/json", **headers})

    def act(self, path: str, query: dict, body: bytes) -> tuple[int, dict, object]:
        parts = path.split("/")
        for operation in DESCRIPTION:
            ours = operation["path"].split("/")
            same = len(ours) == len(parts) and all(
                a == b or a.startswith("{") for a, b in zip(ours, parts, strict=True)
            )
            if same and operation["method"] == self.command:
                break
        else:
            self.forge.flaws.append(f"{self.command} {path}: not in the description")
            return 404, {}, {"message": "Not Found"}
        given = json.loads(body) if body else None
        wrong = [
            f"no header {name}" for name in ("user-agent", "accept", "x-github-api-version") if name not in self.headers
        ]
        for name, value in query.items():
            schema = operation["query"].get(name)
            wrong += [f"no parameter {name}"] if schema is None else []
            typed = int(value) if (schema or {}).get("type") == "integer" and value.isdigit() else value
            wrong += flaws(schema or {}, typed, name)
        if given is not None:
            wrong += ["there is no body"] if operation["body"] is None else flaws(operation["body"], given, "body")
        if wrong:
            self.forge.flaws.append(f"{self.command} {path}: {wrong}")
            return 422, {}, {"message": str(wrong)}
        if self.headers.get("authorization", "").removeprefix("Bearer ") not in self.forge.tokens:
            return 401, {}, {"message": "Bad credentials"}
        named = [urllib.parse.unquote(part) for part in parts[2:]]
        with self.forge.lock:
            told = self.of(operation, named, query, given)
        return (404, {}, {"message": "Not Found"}) if told is None else told

    def of(self, operation: dict, named: list[str], query: dict, given: dict | None):
        forge, kind = self.forge, operation["path"].removeprefix("/repos/{owner}/{repo}")
        told = json.loads(json.dumps(operation["example"]))
        status = operation["status"]
        if named[0] != "octo" or not (forge.root / f"octo/{named[1]}.git").exists():
            return None
        match operation["method"], kind:
            case "GET", "":
                return status, {}, {**told, "default_branch": "main"}
            case "GET", "/branches/{branch}":
                if (tip := forge.tip(named[3])) is None:
                    return None
                told["name"], told["commit"]["sha"] = named[3], tip
                return status, {}, told
            case "GET", "/branches/{branch}/protection":
                return (status, {}, told) if named[3] == "main" else None
            case "GET", "/pulls":
                head = query.get("head", "").removeprefix("octo:")
                return status, {}, [pull for pull in forge.pulls if head in ("", pull["head"]["ref"])]
            case "POST", "/pulls":
                if forge.tip(given["head"]) is None:
                    return 422, {}, {"message": "Validation Failed", "errors": [{"field": "head", "code": "invalid"}]}
                told |= {key: given.get(key) for key in ("title", "body", "draft")}
                told |= {"number": len(forge.pulls) + 1, "state": "open", "merged": False, "merged_at": None}
                told["head"] |= {"ref": given["head"], "sha": forge.tip(given["head"])}
                told["base"] |= {"ref": given["base"], "sha": forge.tip(given["base"])}
                forge.pulls.append(told)
                return status, {}, told
        return None

    def serve_git(self, path: str, query: str, body: bytes):
        basic = self.headers.get("authorization", "").removeprefix("Basic ")
        token = base64.b64decode(basic).decode().removeprefix("x-access-token:")
        if token not in self.forge.tokens:
            return self.reply(401, b"", {"www-authenticate": 'Basic realm="GitHub"'})
        if path.endswith("/info/lfs/objects/batch"):
            return self.serve_batch(json.loads(body))
        if "/info/lfs/" in path:
            return self.reply(404, b"{}", {"content-type": "application/vnd.git-lfs+json"})
        is_push = path.endswith("/git-receive-pack")
        with self.forge.lock:
            drop = self.forge.drops.pop(0) if is_push and len(body) > 4 and self.forge.drops else None
        if drop == "before":
            return self.hang_up()
        environment = PLAIN | {
            "GIT_PROJECT_ROOT": str(self.forge.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": self.headers.get("git-protocol", ""),
            "REMOTE_USER": "octo",
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=environment, capture_output=True)
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        if drop == "after":
            return self.hang_up()
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        self.reply(int(headers.pop("Status", "200").split()[0]), answer, headers)

    def serve_batch(self, wanted: dict):
        """Answers with places elsewhere, and what opens them."""
        place = f"https://{NAME}:{self.forge.storage_port}/storage"
        objects = []
        for asked in wanted["objects"]:
            oid, is_here = asked["oid"], asked["oid"] in self.forge.objects
            action = {"header": {"Authorization": self.forge.remote_auth}, "expires_in": 600}
            told = {"oid": oid, "size": asked["size"], "authenticated": True}
            if wanted["operation"] == "download" and is_here:
                told["actions"] = {"download": action | {"href": f"{place}/{oid}?token=canary-in-a-url"}}
            elif wanted["operation"] == "download":
                told["error"] = {"code": 404, "message": "Object does not exist"}
            elif not is_here:
                told["actions"] = {
                    "upload": action | {"href": f"{place}/{oid}?token=canary-in-a-url"},
                    "verify": action | {"href": f"{place}/verify"},
                }
            objects.append(told)
        answer = json.dumps({"transfer": "basic", "objects": objects}).encode()
        self.reply(200, answer, {"content-type": "application/vnd.git-lfs+json"})

    def serve_storage(self, rest: str, body: bytes):
        if self.headers.get("authorization") != self.forge.remote_auth:
            return self.reply(403, b"<Error>the signature does not match</Error>", {})
        if rest == "verify":
            said = json.loads(body)
            good = len(self.forge.objects.get(said["oid"], b"")) == said["size"]
            self.forge.verified.add(said["oid"])
            return self.reply(200 if good else 404, b"{}", {"content-type": "application/vnd.git-lfs+json"})
        if self.command == "PUT":
            self.forge.objects[rest] = body
            return self.reply(200, b"", {})
        found = self.forge.objects.get(rest)
        return self.reply(404, b"", {}) if found is None else self.reply(200, found, {})
