// Package bareraft is the reference for the metadata service: hashicorp/raft,
// raft-wal and pebble without our code between them, one process a node. Each
// proposal is one Raft entry that reads one key and writes one. The applied
// index is in the same pebble batch, as in the real service.
//
// It exists only for `moraine bench meta`, and its data is worthless. One path
// through it: Run joins the group, the elected node proposes entries (load), fsm
// applies them, and Run reports the Result.
package bareraft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"golang.org/x/sync/errgroup"
)

// Config describes one node.
type Config struct {
	ID, Dir string
	// Peers maps ids to addresses; this node's is where it listens.
	Peers map[string]string
	// Clients is how many goroutines propose concurrently, EntryBytes the size of
	// an entry, and Duration how long they propose.
	Clients, EntryBytes int
	Duration            time.Duration
}

// Result is what the leader measured.
type Result struct {
	PerSecond float64 `json:"per_second"`
	Entries   uint64  `json:"entries"`
	Seconds   float64 `json:"seconds"`
}

// Run joins the group and waits until ctx ends. The first elected node proposes for
// Duration, and then calls report with its measurements. The other nodes never call
// it.
func Run(ctx context.Context, cfg Config, report func(Result)) error {
	n, err := open(cfg)
	if err != nil {
		return err
	}
	defer n.close()
	leader := n.raft.LeaderCh()
	for {
		select {
		case <-ctx.Done():
			return nil
		case leads := <-leader:
			if !leads {
				return errors.New("bareraft: lost the leadership during the measurement")
			}
			if err := n.raft.Barrier(10 * time.Second).Error(); err != nil {
				return err
			}
			r, err := n.load(ctx)
			if err != nil {
				return err
			}
			report(r)
		}
	}
}

type node struct {
	cfg   Config
	raft  *raft.Raft
	db    *pebble.DB
	log   *wal.WAL
	trans *raft.NetworkTransport
}

func open(cfg Config) (*node, error) {
	n := &node{cfg: cfg}
	logDir, stateDir := filepath.Join(cfg.Dir, "log"), filepath.Join(cfg.Dir, "state")
	for _, d := range []string{logDir, stateDir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	var err error
	if n.db, err = pebble.Open(stateDir, &pebble.Options{FormatMajorVersion: pebble.FormatNewest}); err != nil {
		return nil, err
	}
	if n.log, err = wal.Open(logDir); err != nil {
		return nil, errors.Join(err, n.db.Close())
	}
	quiet := hclog.NewNullLogger()
	addr, err := net.ResolveTCPAddr("tcp", cfg.Peers[cfg.ID])
	if err != nil {
		return nil, err
	}
	n.trans, err = raft.NewTCPTransportWithLogger(addr.String(), addr, 3, 10*time.Second, quiet)
	if err != nil {
		return nil, err
	}
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(cfg.ID)
	rc.Logger = quiet
	rc.MaxAppendEntries = 1024
	rc.BatchApplyCh = true
	rc.NoLegacyTelemetry = true
	rc.SnapshotThreshold = 1 << 40
	var servers []raft.Server
	for id, a := range cfg.Peers {
		servers = append(servers, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(a)})
	}
	snaps := raft.NewDiscardSnapshotStore()
	if err := raft.BootstrapCluster(rc, n.log, n.log, snaps, n.trans, raft.Configuration{Servers: servers}); err != nil {
		return nil, err
	}
	n.raft, err = raft.NewRaft(rc, &fsm{db: n.db}, n.log, n.log, snaps, n.trans)
	return n, err
}

func (n *node) close() {
	_ = n.raft.Shutdown().Error()
	_ = n.trans.Close()
	_ = n.log.Close()
	_ = n.db.Close()
}

// load proposes from Clients goroutines, each one entry at a time.
func (n *node) load(ctx context.Context) (Result, error) {
	var count atomic.Uint64
	start := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for c := range n.cfg.Clients {
		g.Go(func() error {
			entry := make([]byte, max(n.cfg.EntryBytes, 16))
			binary.BigEndian.PutUint64(entry, uint64(c))
			for i := uint64(0); time.Since(start) < n.cfg.Duration && ctx.Err() == nil; i++ {
				binary.BigEndian.PutUint64(entry[8:], i)
				// raft keeps the slice: each entry needs its own.
				f := n.raft.Apply(append([]byte(nil), entry...), 10*time.Second)
				if err := f.Error(); err != nil {
					return fmt.Errorf("bareraft: %w", err)
				}
				if err, failed := f.Response().(error); failed {
					return fmt.Errorf("bareraft: %w", err)
				}
				count.Add(1)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return Result{}, err
	}
	d := time.Since(start)
	return Result{PerSecond: float64(count.Load()) / d.Seconds(), Entries: count.Load(), Seconds: d.Seconds()}, nil
}

// fsm writes each entry under its first 16 bytes.
type fsm struct{ db *pebble.DB }

var appliedKey = []byte("applied")

// Apply implements raft.FSM.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	results := make([]any, len(logs))
	b := f.db.NewBatch()
	defer b.Close()
	for i, l := range logs {
		if l.Type != raft.LogCommand {
			continue
		}
		if _, closer, err := f.db.Get(l.Data[:16]); err == nil {
			results[i] = closer.Close()
		} else if !errors.Is(err, pebble.ErrNotFound) {
			results[i] = err
		}
		if err := b.Set(l.Data[:16], l.Data, nil); err != nil {
			results[i] = err
		}
	}
	var applied [8]byte
	binary.BigEndian.PutUint64(applied[:], logs[len(logs)-1].Index)
	if err := b.Set(appliedKey, applied[:], nil); err != nil {
		results[0] = err
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		results[0] = err
	}
	return results
}

// Snapshot is never called: the threshold is out of reach.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	return nil, errors.New("bareraft: takes no snapshots")
}

// Restore is never called, since there are no snapshots.
func (f *fsm) Restore(r io.ReadCloser) error {
	return errors.Join(errors.New("bareraft: restores no snapshots"), r.Close())
}
