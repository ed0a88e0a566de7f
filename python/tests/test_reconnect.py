"""Tests of moraine.checkpoint against an agent that goes and comes back, which this file imitates."""

import contextlib
import json
import os
import socket
import struct
import threading

import numpy as np
import pytest

from moraine import checkpoint, errors


class Agent:
    """An agent that ends a connection, without a reply, at each request in `ends`, once."""

    def __init__(self, path, ends=(), attempts=(1,), local=True):
        self.path, self.ends, self.attempts, self.local, self.seen = str(path), list(ends), list(attempts), local, []
        self.begins = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            conn, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn):
        with conn, contextlib.suppress(OSError):
            while head := conn.recv(4, socket.MSG_WAITALL):
                body = conn.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL)
                ((op, fields),) = json.loads(body).items()
                self.seen.append(op)
                if op == "begin":
                    self.begins.append(fields)
                if op in self.ends:
                    self.ends.remove(op)
                    return
                self._reply(conn, op)

    def _reply(self, conn, op):
        reply, fds = {op: {}}, []
        if op == "open":
            reply = {op: {"attempt": self.attempts.pop(0) if len(self.attempts) > 1 else self.attempts[0]}}
        elif op == "begin":
            fds = [os.memfd_create("slot")]
            os.truncate(fds[0], 1 << 20)
            reply = {op: {"slot": f"slot-{len(self.seen)}", "bytes": 1 << 20}}
        elif op == "wait":
            reply = {op: {"level": "local"}} if self.local else {"error": {"kind": "not found", "text": "no such part"}}
        body = json.dumps(reply).encode()
        socket.send_fds(conn, [struct.pack("<I", len(body)) + body], fds)
        for fd in fds:
            os.close(fd)


def open_run(agent):
    return checkpoint.Run("/runs/a", launch=checkpoint.Launch("one"), agent=agent.path)


def test_a_save_finds_the_next_agent(tmp_path):
    agent = Agent(tmp_path / "s", ends=["begin"])
    with open_run(agent) as run:
        run.save_async({"w": np.zeros(3)}, step=1)
    assert agent.seen == ["hello", "open", "begin", "hello", "open", "begin", "seal"]


def test_another_attempt_at_the_next_agent_is_an_error(tmp_path):
    with open_run(Agent(tmp_path / "s", ends=["begin"], attempts=[1, 2])) as run:
        with pytest.raises(errors.Fenced):
            run.save_async({"w": np.zeros(3)}, step=1)


def test_the_next_agent_says_whether_a_seal_took_effect(tmp_path):
    with open_run(Agent(tmp_path / "s", ends=["seal"])) as run:
        run.save_async({"w": np.zeros(3)}, step=1)
        run.save_async({"w": np.zeros(3)}, step=2)
    with open_run(Agent(tmp_path / "t", ends=["seal"], local=False)) as run:
        with pytest.raises(errors.Unavailable):
            run.save_async({"w": np.zeros(3)}, step=1)
        run.save_async({"w": np.zeros(3)}, step=2)


def test_the_agent_knows_what_to_do_when_it_is_busy(tmp_path):
    agent = Agent(tmp_path / "s")
    with open_run(agent) as run:
        for step, busy in enumerate(("wait", "skip", "supersede")):
            run.save_async({"w": np.zeros(3)}, step=step, level="memory", busy=busy)
    assert [(b["no_wait"], b["supersede"]) for b in agent.begins] == [(False, False), (True, False), (False, True)]
    assert {b["level"] for b in agent.begins} == {"memory"}


def test_a_closed_run_stays_closed(tmp_path):
    agent = Agent(tmp_path / "s")
    run = open_run(agent)
    run.close()
    with pytest.raises(errors.Unavailable):
        run.save_async({"w": np.zeros(3)}, step=1)
    assert agent.seen == ["hello", "open"]


def test_a_failed_copy_is_the_error_though_the_agent_has_gone(tmp_path):
    class Broken:
        dtype, shape = np.dtype(np.float32), (4,)

        def __array__(self, *args, **kwargs):
            raise RuntimeError("no such device")

    with open_run(Agent(tmp_path / "s", ends=["abort"])) as run:
        with pytest.raises(RuntimeError, match="no such device"):
            run.save_async({"w": Broken()}, step=1)
