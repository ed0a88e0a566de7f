"""The protocol between a trainer and the agent of its node: see docs/formats/agent.md."""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

from moraine import errors

DEFAULT_SOCKET = "/run/moraine/agent.sock"
VERSION = 1
MAX_FRAME = 16 << 20


class Connection:
    """One connection to the agent. One thread may use it at a time."""

    def __init__(self, path: str) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.connect(path)
            self.request("hello", version=VERSION)
        except OSError as err:
            self._sock.close()
            raise errors.Unavailable(
                f"no agent answers at {path} ({err}): start one on this node with `moraine agent`"
            ) from err
        except BaseException:
            self._sock.close()
            raise

    def close(self) -> None:
        """Close the connection. A part that is not sealed ends with it."""
        self._sock.close()

    def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """Make a request and return the fields of its reply."""
        reply, fds = self.request_fds(op, **fields)
        for fd in fds:
            os.close(fd)
        return reply

    def request_fds(self, op: str, **fields: Any) -> tuple[dict[str, Any], list[int]]:
        """Make a request. Return the fields of its reply, and its descriptors, which the caller closes."""
        body = json.dumps({op: {k: v for k, v in fields.items() if v is not None}}).encode()
        if len(body) > MAX_FRAME:
            raise errors.TooLarge(f"a message of {len(body)} bytes; {MAX_FRAME} at most")
        fds: list[int] = []
        try:
            self._sock.sendall(struct.pack("<I", len(body)) + body)
            head, fds, _, _ = socket.recv_fds(self._sock, 4, 4)
            head += self._read(4 - len(head))
            reply = json.loads(self._read(struct.unpack("<I", head)[0]))
        except (OSError, EOFError, ValueError) as err:
            for fd in fds:
                os.close(fd)
            self._sock.close()
            raise errors.Unavailable(f"the agent went before it answered: {err}") from err
        if "error" in reply:
            for fd in fds:
                os.close(fd)
            raise errors.of(reply["error"]["kind"], reply["error"]["text"])
        return reply[op], fds

    def _read(self, n: int) -> bytes:
        chunks = []
        while n > 0:
            chunk = self._sock.recv(min(n, 1 << 20))
            if not chunk:
                raise EOFError("the connection ended")
            chunks.append(chunk)
            n -= len(chunk)
        return b"".join(chunks)
