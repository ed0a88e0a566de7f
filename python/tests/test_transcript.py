"""The frames that this package sends, against the golden transcript of the protocol.

This file has the agent's side of the transcript. That a real agent sends just that:
agent.TestGoldenTranscript. docs/formats/agent.md says how to read the transcript.
"""

import os
import pathlib
import re
import socket
import struct
import threading

import numpy as np
import pytest

from moraine import checkpoint, errors
from moraine.fsspec import MoraineFileSystem

GOLDEN = pathlib.Path(__file__).parents[2] / "client/ckpt/agentproto/testdata/transcript.txt"
PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def dialogue(title):
    """Return the events of a dialogue of this package."""
    for part in GOLDEN.read_text().split("\n== ")[1:]:
        head, *lines = part.split("\n")
        if head == f"python: {title}":
            return [line.split(" ", 4) for line in lines if line and not line.startswith("#")]
    raise AssertionError(f"no dialogue {title!r}")


class Agent:
    """The agent's side of one dialogue."""

    def __init__(self, socket_path, title):
        self.path, self._events, self._wrong = str(socket_path), dialogue(title), []
        self._conns, self._slots, self._last, self._written = {}, {}, {}, []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._listener.settimeout(10)
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *failed):
        self._thread.join(20)
        assert not self._wrong, "\n".join(self._wrong)
        assert not self._thread.is_alive(), "the dialogue has not ended"

    def _play(self):
        try:
            for i, event in enumerate(self._events):
                self._event(event, self._events[i + 1 :])
        except (OSError, EOFError, AssertionError) as err:
            self._wrong.append(f"{' '.join(event)}\n{err!r}")
        self._listener.close()
        for conn in self._conns.values():
            conn.close()

    def _event(self, event, later):
        name, kind, *rest = event
        if kind == "connects":
            self._conns[name], _ = self._listener.accept()
            self._conns[name].settimeout(10)
        elif kind == ">":
            self._compare(self._conns[name], *rest)
            for slot, at, data in self._written:  # before this frame
                assert os.pread(self._last[slot], len(data), at) == data
            self._written = []
        elif kind == "<":
            self._reply(name, rest[1], rest[2], later)
        elif kind == "writes":
            self._written.append((name, int(rest[0]), bytes.fromhex(rest[1])))
        elif kind == "closes":
            assert self._conns[name].recv(1) == b"", "the connection goes on"

    def _compare(self, conn, prefix, _, body):
        """Receive a frame that must be this one."""
        want = self._fill(body)
        head = conn.recv(4, socket.MSG_WAITALL)
        (size,) = struct.unpack("<I", head or b"\0\0\0\0")
        got = conn.recv(size, socket.MSG_WAITALL).decode()
        assert got == want, f"sent\n{got}"
        assert prefix in ("." * 8, head.hex()), f"sent as length {head.hex()}"

    def _fill(self, body):
        """Give each placeholder a value that does for a number, and within a string."""
        return PLACEHOLDER.sub(lambda m: str(sum(m[1].encode())), body)

    def _reply(self, name, files, body, later):
        body, fds = self._fill(body), []
        if files == "1":
            slot = re.search(r'"slot":"(\d+)"', body)[1]
            if slot not in self._slots:
                self._slots[slot] = os.memfd_create("slot")
                os.truncate(self._slots[slot], 16 << 20)
            self._last[name] = self._slots[slot]
            fds = [self._slots[slot]]
            for _, kind, *rest in later:  # what the agent has put there
                if kind != "reads":
                    break
                os.pwrite(fds[0], bytes.fromhex(rest[1]), int(rest[0]))
        frame = body.encode()
        socket.send_fds(self._conns[name], [struct.pack("<I", len(frame)) + frame], fds)


def state():
    return {
        "w": np.array([1, 2, 3], np.uint16),
        "v": checkpoint.Slice(np.array([[10, 11], [12, 13]], np.uint8), (0, 0), (2, 2)),
    }


def test_a_save(tmp_path):
    with Agent(tmp_path / "sock", "a save") as agent:
        run = checkpoint.Run("/runs/python", launch=checkpoint.Launch("one"), agent=agent.path)
        save = run.save_async(state(), 7, blobs={"rng": b"seed"})
        assert save.wait("local") == "local"
        save.progress()
        assert save.wait("nvme", timeout=60) == "nvme"
        run.close()


def test_a_restore(tmp_path):
    with Agent(tmp_path / "sock", "a restore") as agent:
        run = checkpoint.Run("/runs/python", launch=checkpoint.Launch("two"), agent=agent.path)
        last = run.restore()
        assert last.step == 7
        w = np.zeros(3, np.uint16)
        last.read_into({"w": w}, batch_bytes=4)
        assert list(w) == [1, 2, 3]
        assert last.blob("rng") == b"seed"
        with pytest.raises(errors.NotFound):
            run.open(9)
        run.close()


def test_files(tmp_path):
    with Agent(tmp_path / "sock", "files") as agent:
        fs = MoraineFileSystem(agent=agent.path, skip_instance_cache=True)
        with fs.open("/data/a", "wb") as f:
            f.write(b"hello")
        assert fs.ls("/data", detail=False) == ["/data/a"]
        assert fs.cat_file("/data/a", 1, 5) == b"ello"
        with pytest.raises(FileNotFoundError):
            fs.info("/data/b")


def test_another_frame_is_noticed(tmp_path):
    with pytest.raises(AssertionError, match="/runs/other"), Agent(tmp_path / "sock", "a save") as agent:
        with pytest.raises(errors.Unavailable):
            checkpoint.Run("/runs/other", launch=checkpoint.Launch("one"), agent=agent.path)
