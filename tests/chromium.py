"""Drives headless Chromium over its DevTools protocol, with the standard library alone."""

import base64
import contextlib
import itertools
import json
import os
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")
_SECONDS = 60
"""Time limit for the start and for each answer; a shared machine may be slow."""

_TEXT, _CLOSE = 1, 8
"""Opcodes of WebSocket frames."""


class Tab:
    """A tab of the browser.

    events: events since the last call of `open`, in the order of their arrival.
    """

    def __init__(self, connection: "_WebSocket") -> None:
        self.events: list[dict[str, Any]] = []
        self._connection, self._ids, self._session = connection, itertools.count(1), {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Calls a method of the protocol and returns its result."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters, **self._session}
        self._connection.send(json.dumps(message))
        while (answer := self._receive()).get("id") != number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def evaluate(self, expression: str) -> Any:
        """Evaluates JavaScript in the page, waits for a promise, and returns the JSON value."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def open(self, url: str) -> None:
        """Opens a page and waits until it is loaded."""
        self.events.clear()
        answer = self.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise RuntimeError(f"{url}: {answer['errorText']}")
        loaded = {"name": "load", "loaderId": answer["loaderId"]}
        while not any(loaded.items() <= event["params"].items() for event in self.events):
            self._receive()

    def _receive(self) -> dict[str, Any]:
        message = json.loads(self._connection.receive())
        if "method" in message:
            self.events.append(message)
        return message


class _WebSocket:
    """The client side of a WebSocket (RFC 6455), for text without extensions."""

    def __init__(self, port: int, path: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)
        self._stream = self._socket.makefile("rb")
        lines = (
            f"GET {path} HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            "Sec-WebSocket-Version: 13",
        )
        self._socket.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode())
        status, *_ = iter(self._stream.readline, b"\r\n")
        if b" 101 " not in status:
            raise ConnectionError(f"Expected a WebSocket, got {status!r}.")

    def send(self, text: str) -> None:
        payload, mask = text.encode(), os.urandom(4)
        size = len(payload)
        if size < 126:
            header = struct.pack("!BB", 128 + _TEXT, 128 + size)
        elif size < 1 << 16:
            header = struct.pack("!BBH", 128 + _TEXT, 128 + 126, size)
        else:
            header = struct.pack("!BBQ", 128 + _TEXT, 128 + 127, size)
        masked = bytes(a ^ b for a, b in zip(payload, itertools.cycle(mask), strict=False))
        self._socket.sendall(header + mask + masked)

    def receive(self) -> str:
        """Returns the next message, which may come in several frames."""
        payload, is_last = b"", False
        while not is_last:
            first, size = self._read("!BB")
            if size == 126:
                (size,) = self._read("!H")
            elif size == 127:
                (size,) = self._read("!Q")
            content, opcode = self._stream.read(size), first & 15
            if opcode == _CLOSE:
                raise ConnectionError("Chromium closed the connection.")
            if opcode < _CLOSE:  # the other control frames are pings and pongs
                payload, is_last = payload + content, first >= 128
        return payload.decode()

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _read(self, form: str) -> tuple[int, ...]:
        content = self._stream.read(struct.calcsize(form))
        if not content:
            raise ConnectionError("Chromium ended.")
        return struct.unpack(form, content)


@contextlib.contextmanager
def launch(path: str) -> Iterator[Tab]:
    """Starts Chromium with an empty profile, and ends it on exit."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [path, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            address = _wait_for_address(process, Path(folder, "DevToolsActivePort"))
            with contextlib.closing(_WebSocket(*address)) as connection:
                yield Tab(connection)
        finally:
            process.terminate()
            try:
                process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_address(process: subprocess.Popen[bytes], file: Path) -> tuple[int, str]:
    """Returns port and path of the browser, which Chromium writes to a file."""
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        lines = file.read_text().split() if file.exists() else []
        if len(lines) == 2:
            return int(lines[0]), lines[1]
        time.sleep(0.02)
    raise RuntimeError(f"Expected Chromium to start, got exit status {process.poll()}.")
