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

	"github.com/morainefs/moraine/internal/bench/bareraft"
	"github.com/morainefs/moraine/internal/devcluster"
)

const (
	// metaDir is the directory of the metadata benchmark.
	metaDir = "/bench-meta"
	// createEntryBytes is the size of a create in the log, in bytes. The entry
	// (state.EncodeEntry) has one command of OpCreate, under a session's 500th
	// number, with its caller and a name of 12 bytes. It was measured: the command
	// is 81, its frame 11; a command that shares an entry adds 82.
	createEntryBytes = 92
	raftNodes        = 3
)

// Meta measures small operations by e.Clients clients; mutations are compared with
// bare Raft.
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
	work := Work{Path: metaDir, Clients: e.Clients, Seconds: e.Seconds}
	for _, op := range e.metaOps() {
		e.Progress("%s", op)
		work.Op = op
		result, more, err := e.metaOp(ctx, work, raft)
		if err != nil {
			return nil, err
		}
		lines = append(lines, more...)
		switch op {
		case OpCreate:
			work.Files = result.Each
		case OpRename:
			work.Renames = result.Each
		}
	}
	if e.Connect == nil {
		return lines, nil
	}
	line, err := e.smallFiles(ctx)
	return append(lines, line), err
}

// smallFileClients make small files at the same time.
const smallFileClients = 4

// smallFiles measures files of one block that sessions make as mounts do.
func (e *Env) smallFiles(ctx context.Context) (Line, error) {
	e.Progress("%s", OpSmallFile)
	results, u, err := e.run(ctx, []Work{{Op: OpSmallFile, Path: metaDir + "/" + string(OpSmallFile), Clients: smallFileClients, Seconds: e.Seconds}})
	if err != nil {
		return Line{}, err
	}
	return e.opsLine(string(OpSmallFile), results[0], u), nil
}

// metaOp measures one operation: a mutation compared with bare Raft, and for a read
// how many requests it cost.
func (e *Env) metaOp(ctx context.Context, work Work, raft float64) (Result, []Line, error) {
	var before float64
	counted := e.Cluster != nil && (work.Op == OpStat || work.Op == OpReadDir)
	if counted {
		var err error
		if before, err = e.servers().looked(ctx); err != nil {
			return Result{}, nil, err
		}
	}
	results, u, err := e.run(ctx, []Work{work})
	if err != nil {
		return Result{}, nil, err
	}
	line := e.opsLine(string(work.Op), results[0], u)
	if work.Op != OpStat && work.Op != OpReadDir { // an entry of the log
		line = line.against(raft, "raft")
	}
	if !counted {
		return results[0], []Line{line}, nil
	}
	after, err := e.servers().looked(ctx)
	requests := Line{Name: e.name(string(work.Op) + "-requests"), Value: after - before, Unit: "requests"}
	return results[0], []Line{line, requests.against(float64(results[0].Ops), string(work.Op)+"s")}, err
}

// metaOps are the measured operations. Stripes without chunks are committed only on
// a cluster that ends with the benchmark.
func (e *Env) metaOps() []Op {
	ops := []Op{OpCreate, OpStat, OpReadDir, OpRename, OpUnlink, OpCommit}
	if e.Cluster == nil {
		ops = slices.DeleteFunc(ops, func(o Op) bool { return o == OpCommit })
	}
	return ops
}

// opsLine makes a line in operations per second.
func (e *Env) opsLine(name string, r Result, u usage) Line {
	return Line{Name: e.name(name), Value: float64(r.Ops) / r.Seconds, Unit: "ops/s",
		CPU: u.cpu / (float64(r.Ops) / 1e6), DeviceBytes: u.wrote, Syncs: u.syncs}
}

// bareRaft runs only hashicorp/raft, raft-wal and pebble in three processes on the
// same file system, with as many proposers as there are clients.
func (e *Env) bareRaft(ctx context.Context) (Line, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	addrs, err := devcluster.FreeAddresses(raftNodes)
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
