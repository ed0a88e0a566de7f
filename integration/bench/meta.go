package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/morainefs/moraine/integration/bench/bareraft"
	"github.com/morainefs/moraine/integration/procs"
)

const (
	// metaDir is where the benchmark of metadata works.
	metaDir = "/bench-meta"
	// createEntryBytes is the size of a create in the log, in bytes: of an entry
	// (state.EncodeEntry) with one command as OpCreate makes it, under a session's
	// 500th number, with its caller and a name of 12 bytes. It was measured: the
	// command is 81, what frames it 11; a command that shares an entry adds 82.
	createEntryBytes = 92
	raftNodes        = 3
)

// Meta measures creates and stats by e.Clients clients, beside bare Raft.
func Meta(ctx context.Context, e *Env) ([]Line, error) {
	var lines []Line
	var raft float64
	if e.RaftNode != nil {
		e.Progress("bare raft")
		line, err := e.bareRaft(ctx)
		if err != nil {
			return nil, err
		}
		raft = line.Value
		lines = append(lines, line)
	}
	if err := e.mkdir(ctx, metaDir); err != nil {
		return nil, err
	}
	e.Progress("create")
	work := Work{Op: OpCreate, Path: metaDir, Clients: e.Clients, Seconds: e.Seconds}
	results, u, err := e.run(ctx, []Work{work})
	if err != nil {
		return nil, err
	}
	lines = append(lines, e.opsLine("create", results[0], u).against(raft, "raft"))
	e.Progress("stat")
	work.Op, work.Files = OpStat, results[0].Files
	results, u, err = e.run(ctx, []Work{work})
	if err != nil {
		return nil, err
	}
	return append(lines, e.opsLine("stat", results[0], u)), nil
}

// opsLine makes a line in operations a second.
func (e *Env) opsLine(name string, r Result, u usage) Line {
	return Line{Name: e.name(name), Value: float64(r.Ops) / r.Seconds, Unit: "ops/s",
		CPU: u.cpu / (float64(r.Ops) / 1e6), DeviceBytes: u.wrote, Syncs: u.syncs}
}

// bareRaft runs hashicorp/raft, raft-wal and pebble alone in three processes on
// the same file system, with as many proposers as there are clients.
func (e *Env) bareRaft(ctx context.Context) (Line, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	addrs, err := procs.FreeAddresses(raftNodes)
	if err != nil {
		return Line{}, err
	}
	var peers []string
	for i, a := range addrs {
		peers = append(peers, fmt.Sprintf("r%d=%s", i+1, a))
	}
	dir := filepath.Join(e.Dir, "bare-raft")
	defer os.RemoveAll(dir)
	result := make(chan bareraft.Result, raftNodes)
	var nodes []*exec.Cmd
	defer func() {
		for _, n := range nodes {
			_ = n.Process.Kill()
			_ = n.Wait()
		}
	}()
	var complaints strings.Builder
	line := Line{Name: e.name("raft"), Unit: "ops/s"}
	u, err := e.measure(ctx, func(ctx context.Context) error {
		for i := range addrs {
			id := fmt.Sprintf("r%d", i+1)
			args := append(slices.Clone(e.RaftNode[1:]), "--id", id, "--dir", filepath.Join(dir, id), "--peers", strings.Join(peers, ","),
				"--clients", fmt.Sprint(e.Clients), "--entry-bytes", fmt.Sprint(createEntryBytes), "--seconds", fmt.Sprint(e.Seconds))
			n := exec.Command(e.RaftNode[0], args...)
			n.Stderr = &complaints
			n.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
			out, err := n.StdoutPipe()
			if err != nil {
				return err
			}
			if err := n.Start(); err != nil {
				return err
			}
			nodes = append(nodes, n)
			go func() {
				var r bareraft.Result
				if json.NewDecoder(bufio.NewReader(out)).Decode(&r) == nil {
					result <- r
				}
			}()
		}
		select {
		case r := <-result:
			line.Value = r.PerSecond
			return nil
		case <-time.After(time.Duration(e.Seconds*float64(time.Second)) + time.Minute):
			return errors.New("bench: bare raft did not answer: " + complaints.String())
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err != nil {
		return Line{}, err
	}
	line.CPU, line.DeviceBytes = u.cpu/(line.Value*e.Seconds/1e6), u.wrote
	return line, nil
}
