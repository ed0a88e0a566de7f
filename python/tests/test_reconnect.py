"""Tests of moraine.checkpoint against an agent that goes and comes back, which this file imitates."""

import contextlib
import json
import os
import pathlib
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
        self.begins, self.opens, self.error = [], [], None
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
                if op == "open":
                    self.opens.append(fields)
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
        elif op == "progress":
            reply = {op: {"state": "local", "written": 0, "bytes": 0}}
        elif op == "wait" and self.error:
            reply = {"error": self.error}
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


def test_the_slots_of_an_agent_that_has_gone_are_not_kept(tmp_path):
    agent = Agent(tmp_path / "s")
    with open_run(agent) as run:
        for step in range(3):
            run.save_async({"w": np.zeros(3)}, step)
        assert len(run._slots) == 3
        agent.ends.append("begin")
        run.save_async({"w": np.zeros(3)}, step=3)
        assert list(run._slots) == [f"slot-{len(agent.seen) - 1}"]
        assert pathlib.Path("/proc/self/maps").read_text().count("memfd:slot") == 1


def test_a_child_of_fork_maps_no_slot(tmp_path):
    with open_run(Agent(tmp_path / "s")) as run:
        for step in range(3):
            run.save_async({"w": np.zeros(3)}, step)
        assert "memfd:slot" in pathlib.Path("/proc/self/maps").read_text()
        child = os.fork()
        if child == 0:
            os._exit("memfd:slot" in pathlib.Path("/proc/self/maps").read_text())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(run._slots) == 3


def test_a_save_that_maps_nothing_does_not_stop_the_next(tmp_path, monkeypatch):
    agent = Agent(tmp_path / "s")
    with open_run(agent) as run:
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint.mmap, "mmap", lambda *_: (_ for _ in ()).throw(OSError("no memory")))
            with pytest.raises(OSError, match="no memory"):
                run.save_async({"w": np.zeros(3)}, step=1)
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


def test_a_wait_and_the_progress_find_the_next_agent(tmp_path):
    agent = Agent(tmp_path / "s")
    with open_run(agent) as run:
        save = run.save_async({"w": np.zeros(3)}, step=1)
        agent.ends += ["wait", "wait", "hello", "progress"]
        assert save.wait("nvme", timeout=60) == "local"
        assert save.wait("nvme") == "local"
        assert save.progress().state == "local"
    assert not agent.ends


def test_a_wait_ends_if_no_agent_comes_back(tmp_path, caplog):
    agent = Agent(tmp_path / "s")
    with open_run(agent) as run:
        save = run.save_async({"w": np.zeros(3)}, step=1)
        os.rename(agent.path, agent.path + "-gone")
        with pytest.raises(errors.Timeout, match="no agent answered for 0.5 s"):
            save.wait("nvme", timeout=0.5)
        with pytest.raises(errors.Timeout, match="no agent answered"):
            save.progress(timeout=0.5)
    assert len(caplog.records) == 2, "one line for each"


def test_what_the_agent_answers_ends_a_wait(tmp_path):
    agent = Agent(tmp_path / "s")
    with open_run(agent) as run:
        save = run.save_async({"w": np.zeros(3)}, step=1)
        agent.error = {"kind": "unavailable", "text": "the cluster does not answer"}
        with pytest.raises(errors.Unavailable, match="the cluster does not answer"):
            save.wait("nvme", timeout=60)


class OfAllRanks:
    """A DTensor, as far as a save looks at it: the shape is that of all ranks."""

    dtype, shape, device_mesh = np.dtype(np.float32), (8, 4), None

    def to_local(self):
        return np.zeros((2, 4), np.float32)


def test_a_tensor_of_all_ranks_is_refused_before_the_step_begins(tmp_path):
    agent = Agent(tmp_path / "s")
    with open_run(agent) as run:
        with pytest.raises(errors.InvalidArgument, match="w is a OfAllRanks.*moraine.torch.*checkpoint.Slice"):
            run.save_async({"a": np.zeros(3), "w": OfAllRanks()}, step=1)
        assert agent.seen == ["hello", "open"]
        run.save_async({"w": checkpoint.Slice(OfAllRanks().to_local(), (2, 0), (8, 4))}, step=1)


def test_the_expected_bytes_go_to_the_agent(tmp_path):
    agent = Agent(tmp_path / "s")
    checkpoint.Run("/runs/a", launch=checkpoint.Launch("one"), agent=agent.path, expected_bytes=1 << 20).close()
    open_run(agent).close()
    assert [o.get("bytes") for o in agent.opens] == [1 << 20, None]


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
