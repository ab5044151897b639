"""A server that answers every completion with "word " as often as tokens are asked for; run with a port and a file for
a line a start."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._send("application/json", json.dumps({"data": [{"id": "stub"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        piece = json.dumps({"choices": [{"text": "word "}]})
        usage = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": body["max_tokens"]}
        last = json.dumps({"choices": [], "usage": usage | {"prompt_tokens_details": {"cached_tokens": 3}}})
        events = [piece] * body["max_tokens"] + [last, "[DONE]"]
        self._send("text/event-stream", "".join(f"data: {event}\n\n" for event in events))

    def _send(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass


with Path(sys.argv[2]).open("a") as starts:
    starts.write("start\n")
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
