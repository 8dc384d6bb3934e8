"""A stand-in for W&B's server on the loopback interface: it keeps what a client sends.

It answers the operations that wandb 0.31 and wandb-workspaces 0.4 use in an online run, in
``wandb sync`` and for a saved workspace; any other is answered with an error, which fails no run.
"""

import gzip
import json
import re
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self

ENTITY = "acme"
OPERATION = re.compile(r"(?:query|mutation)\s+(\w+)")


class WandbServer:
    """Serve while the block lasts.

    Attributes:
        operations: Name and variables of each GraphQL operation, in order.
        files: Bytes of each uploaded file by its path in the run.
        views: Saved workspaces by name.
    """

    def __init__(self) -> None:
        self.operations: list[tuple[str, dict[str, Any]]] = []
        self.files: dict[str, bytes] = {}
        self.views: dict[str, dict[str, Any]] = {}
        self._lines: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    def environment(self, folder: Path) -> dict[str, str]:
        """Give the variables that lead a client here and nowhere else."""
        kinds = ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "ARTIFACT_DIR")
        return {
            "WANDB_BASE_URL": self.url,
            "WANDB_API_KEY": "local-" + "a" * 40,
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_SILENT": "true",
            **{f"WANDB_{kind}": str(folder) for kind in kinds},
        }

    def sent(self, operation: str) -> list[dict[str, Any]]:
        """Give the variables of each operation of that name."""
        return [variables for name, variables in self.operations if name == operation]

    def history(self, run: str) -> list[dict[str, Any]]:
        """Give the rows of a run in order, nested keys as they came."""
        lines = self._lines[run, "wandb-history.jsonl"]
        return [json.loads(lines[number]) for number in sorted(lines)]

    def summary(self, run: str) -> dict[str, Any]:
        """Give the last summary of a run."""
        lines = self._lines[run, "wandb-summary.json"]
        last: dict[str, Any] = json.loads(lines[max(lines)])
        return last

    def answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Keep an operation, and say what the client waits for."""
        with self._lock:
            self.operations.append((operation, variables))
            known = ANSWERS.get(operation)
            if known is None:
                return {"errors": [{"message": f"{operation} is not known here"}]}
            return {"data": known(self, variables)}

    def stream(self, run: str, body: dict[str, Any]) -> None:
        """Keep the lines a run streams; one that is sent again replaces itself."""
        with self._lock:
            for name, part in body.get("files", {}).items():
                # A summary is sent whole each time, always as its first line.
                offset = len(self._lines[run, name]) if "summary" in name else part["offset"]
                for number, line in enumerate(part["content"]):
                    self._lines[run, name][offset + number] = line


def _viewer(server: WandbServer, variables: dict[str, Any]) -> dict[str, Any]:
    teams: dict[str, Any] = {"edges": []}
    viewer = {"id": "VTox", "entity": ENTITY, "username": "me", "name": "me", "email": "me@acme"}
    return {"viewer": {**viewer, "flags": "{}", "admin": False, "teams": teams}}


def _bucket(server: WandbServer, variables: dict[str, Any]) -> dict[str, Any]:
    entity = {"id": "RTox", "name": variables.get("entity") or ENTITY}
    project = {"id": "UDox", "name": variables.get("project"), "entity": entity}
    name = variables["name"]
    bucket = {"id": name, "name": name, "displayName": name, "description": "", "config": "{}"}
    bucket |= {"sweepName": None, "historyLineCount": 0, "project": project}
    return {"upsertBucket": {"bucket": bucket, "inserted": True}}


def _run_files(server: WandbServer, variables: dict[str, Any]) -> dict[str, Any]:
    files = [
        {"name": name, "uploadUrl": f"{server.url}/upload/{variables['run']}/{name}"}
        for name in variables["files"]
    ]
    answer = {"runID": variables["run"], "uploadHeaders": [], "files": files}
    return {"createRunFiles": answer}


def _artifact(server: WandbServer, variables: dict[str, Any]) -> dict[str, Any]:
    sequence = {"id": "QVJT", "latestArtifact": None}
    artifact = {"id": "QVJU", "state": "COMMITTED", "artifactSequence": sequence}
    return {"createArtifact": {"artifact": artifact}}


def _save_view(server: WandbServer, variables: dict[str, Any]) -> dict[str, Any]:
    inserted = variables["name"] not in server.views
    view = {"id": "Vmlldzox", **variables}
    server.views[variables["name"]] = view
    named = {"id": view["id"], "name": view["name"]}
    return {"upsertView": {"view": named, "inserted": inserted}}


def _find_view(server: WandbServer, variables: dict[str, Any]) -> dict[str, Any]:
    view = server.views.get(variables["viewName"])
    nodes = [{"node": {key: view[key] for key in ("id", "displayName", "spec")}}] if view else []
    return {"project": {"allViews": {"edges": nodes}}}


ANSWERS: dict[str, Any] = {
    "ArtifactType": lambda server, variables: {"project": {"artifact": None}},
    "CreateArtifact": _artifact,
    "CreateRunFiles": _run_files,
    "NotifyScriptableRunAlert": lambda server, variables: {
        "notifyScriptableRunAlert": {"success": True}
    },
    "RunResumeStatus": lambda server, variables: {"model": None},
    "ServerFeaturesQuery": lambda server, variables: {"serverInfo": {"features": []}},
    "UpsertBucket": _bucket,
    "UpsertView2": _save_view,
    "View": _find_view,
    "Viewer": _viewer,
}


def _handler(server: WandbServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self._body() or b"{}")
            if self.path.startswith("/graphql"):
                operation = OPERATION.search(body["query"])
                name = operation.group(1) if operation else ""
                self._send(server.answer(name, body.get("variables") or {}))
                return
            # /files/<entity>/<project>/<run>/file_stream
            server.stream(self.path.split("/")[-2], body)
            self._send({"limits": {}})

        def do_PUT(self) -> None:
            server.files[self.path.partition("/upload/")[2]] = self._body()
            self._send({})

        def do_GET(self) -> None:
            self._send({})

        def _body(self) -> bytes:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            return gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body

        def _send(self, answer: dict[str, Any]) -> None:
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                self.close_connection = True

    return Handler
