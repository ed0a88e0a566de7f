"""The protocol between a trainer and the agent of its node: see docs/formats/agent.md."""

from __future__ import annotations

import json
import os
import socket
import struct
import weakref
from typing import Any

from moraine import errors

DEFAULT_SOCKET = "/run/moraine/agent.sock"
VERSION = 1
MAX_FRAME = 16 << 20


def millis(what: str, seconds: float) -> int:
    """Return a time of a request in milliseconds, 1 at least: 0 means another thing there. The agent has bounds."""
    if not 0 <= seconds < 1e12:  # also of nan
        raise errors.InvalidArgument(f"{what}={seconds}: give a time in seconds, 0 or more")
    return max(int(seconds * 1000), 1)


class Connection:
    """One connection to the agent. One thread may use it at a time."""

    def __init__(self, path: str) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _connections.add(self)
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

    @property
    def closed(self) -> bool:
        """Whether the connection is closed, by either end."""
        return self._sock.fileno() < 0

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
        body = json.dumps({op: {k: v for k, v in fields.items() if v is not None}}, separators=(",", ":")).encode()
        if len(body) > MAX_FRAME:
            raise errors.TooLarge(f"a message of {len(body)} bytes; {MAX_FRAME} at most")
        fds: list[int] = []
        try:
            self._sock.sendall(struct.pack("<I", len(body)) + body)
            head, fds, _, _ = socket.recv_fds(self._sock, 4, 4, socket.MSG_CMSG_CLOEXEC)
            head += self._read(4 - len(head))
            reply = json.loads(self._read(struct.unpack("<I", head)[0]))
        except BaseException as err:  # also an interrupt: the rest of the reply must not answer the next request
            for fd in fds:
                os.close(fd)
            self._sock.close()
            if isinstance(err, (OSError, EOFError, ValueError)):
                raise errors.Unavailable(f"the agent went before it answered: {err}") from err
            raise
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


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _close_in_child() -> None:
    """Close the connections in a child of fork. Otherwise they would not end when the trainer dies."""
    for conn in list(_connections):
        conn.close()


os.register_at_fork(after_in_child=_close_in_child)
