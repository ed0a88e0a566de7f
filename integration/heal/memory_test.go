package heal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// stall blocks writes of chunkservers to their segments.
type stall struct {
	mu    sync.Mutex
	nodes map[string]chan struct{} // closed when the node's writes continue
}

func (s *stall) rule(node string, op vfs.Op) error {
	if op.Kind != vfs.OpWrite || !strings.Contains(op.Path, "segments") {
		return nil
	}
	s.mu.Lock()
	wait := s.nodes[node]
	s.mu.Unlock()
	if wait != nil {
		<-wait
	}
	return nil
}

func (s *stall) begin(nodes ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range nodes {
		s.nodes[n] = make(chan struct{})
	}
}

func (s *stall) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, wait := range s.nodes {
		close(wait)
	}
	clear(s.nodes)
}

// save writes a file at level memory.
func (w *world) save(name string, data []byte) client.CommitResult {
	w.t.Helper()
	f, err := w.admin.Create(w.ctx, name, client.CreateOptions{Level: moraine.Memory, Replace: true})
	require.NoError(w.t, err)
	_, err = f.Write(data)
	require.NoError(w.t, err)
	res, err := f.Commit(w.ctx)
	require.NoError(w.t, err)
	w.files[name] = data
	return res
}

func (w *world) level(name string) moraine.Level {
	w.t.Helper()
	a, err := w.admin.Stat(w.ctx, name)
	require.NoError(w.t, err)
	return a.Level()
}

// lost names the lost ranges: path: [offset length]...
func (w *world) lost() (out []string) {
	w.t.Helper()
	for _, f := range w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ListLost{ListLost: &wire.ListLost{}}}).GetLost().GetFiles() {
		s := "/" + f.Path
		for _, r := range f.Ranges {
			s += fmt.Sprintf(" [%d %d]", r.Offset, r.Length)
		}
		out = append(out, s)
	}
	return out
}

func noise(seed byte, n int) []byte {
	b := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{seed})
	_, _ = rng.Read(b)
	return b
}

// TestMemoryLevelFaults: data acknowledged at level memory survives the kill of as
// many hosts, before they have written anything, as the scheme permits, and is
// repaired. With one more it is lost, reported by name, and no byte of it is
// served.
func TestMemoryLevelFaults(t *testing.T) {
	all := []string{"n1", "n2", "n3", "n4", "n5", "n6"}
	for _, row := range []struct {
		name  string
		end   func(w *world, nodes []string) // hosts whose devices had nothing yet
		nodes []string
		lost  bool
		spare int // additional hosts
	}{
		{"nobody fails", func(*world, []string) {}, nil, false, 0},
		{"one is killed", killed, all[:1], false, 0},
		{"m are killed", killed, all[:2], false, 0},
		{"m are killed, and stay away", goneForGood, all[:2], false, 2},
		{"m+1 are killed", killed, all[:3], true, 0},
		{"all are killed", killed, all, true, 0},
		{"m+1 lose their power", cut, all[:3], true, 0},
		{"all are terminated", stopped, all, false, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := &stall{nodes: map[string]chan struct{}{}}
			inWorld(t, incluster.Options{Chunkservers: 6 + row.spare, RepairGrace: 20 * time.Second, Rule: s.rule}, func(w *world) {
				defer s.end()
				w.write(2)
				s.begin(row.nodes...)
				res := w.save("/saved", noise(1, 1<<20))
				require.EqualValues(t, moraine.Memory, res.Attr.Level())
				require.Equal(t, 2, res.Protects)
				w.readAll() // from memory
				if row.nodes != nil {
					time.Sleep(5 * time.Second)
					require.Equal(t, moraine.Memory, w.level("/saved"), "a file is at nvme that devices do not have")
				}
				if row.name == "all are terminated" {
					s.end() // a shutdown waits for dirty chunks
				}
				// A killed server leaves the disk as it is then, and blocked writes
				// go nowhere.
				time.AfterFunc(time.Second, s.end)
				row.end(w, row.nodes)
				s.end()
				if !row.lost {
					w.until("the file is at nvme", func() bool { return w.level("/saved") == moraine.NVMe })
					require.Empty(t, w.lost())
					w.sound()
					w.readAll()
					w.Kill("n5", "n6") // as many may be lost as before
					w.readAll()
					return
				}
				w.until("it is said to be lost", func() bool { return w.lost() != nil })
				require.Equal(t, []string{fmt.Sprintf("/saved [0 %d]", 1<<20)}, w.lost())
				require.Zero(t, w.level("/saved"))
				w.holdLost("/saved")
				w.save("/saved", noise(2, 100_000))
				w.until("what was written again is at nvme", func() bool { return w.level("/saved") == moraine.NVMe })
				require.Empty(t, w.lost())
				w.readAll()
			})
		})
	}
}

// killed, cut, stopped: the servers end, and start again. goneForGood: they do not.
func killed(w *world, nodes []string) {
	w.Kill(nodes...)
	w.again(nodes)
}

func cut(w *world, nodes []string) {
	w.PowerCut(nodes...)
	w.again(nodes)
}

func stopped(w *world, nodes []string) {
	for _, n := range nodes {
		w.StopNode(n)
	}
	w.again(nodes)
}

func goneForGood(w *world, nodes []string) { w.Kill(nodes...) }

func (w *world) again(nodes []string) {
	w.t.Helper()
	require.NoError(w.t, w.Restart(nodes...))
	require.NoError(w.t, w.WaitReady(w.ctx))
}

// holdLost reads a lost file piece by piece: each read returns right bytes or an
// error, and always an error in the ranges reported as lost.
func (w *world) holdLost(name string) {
	w.t.Helper()
	want := w.files[name]
	failed := 0
	for off := 0; off < len(want); off += 50_000 {
		n := min(50_000, len(want)-off)
		r, err := w.admin.OpenFile(w.ctx, name)
		require.NoError(w.t, err)
		have := make([]byte, n)
		if _, err := r.ReadAt(w.ctx, have, int64(off)); err != nil {
			failed++
		} else {
			require.True(w.t, bytes.Equal(want[off:off+n], have), "wrong bytes at %d", off)
		}
		require.NoError(w.t, r.Close())
	}
	require.NotZero(w.t, failed)
	require.ErrorIs(w.t, w.admin.Inodes().WaitNVMe(w.ctx, w.inode(name)), moraine.Lost)
}

func (w *world) inode(name string) moraine.InodeID {
	w.t.Helper()
	a, err := w.admin.Stat(w.ctx, name)
	require.NoError(w.t, err)
	return a.Inode()
}

// TestMemoryLevelRepliesLost: each request that takes a file from memory to nvme
// takes effect and its answer is lost, or it never arrives. The file reaches nvme
// nevertheless.
func TestMemoryLevelRepliesLost(t *testing.T) {
	for _, arrives := range []bool{false, true} {
		t.Run(fmt.Sprint("arrives=", arrives), func(t *testing.T) {
			inWorld(t, incluster.Options{Chunkservers: 6}, func(w *world) {
				var mu sync.Mutex
				failed := map[string]int{}
				lossy := func(d transport.Dialer) transport.Dialer {
					return incluster.Through(d, incluster.Requests(func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
						name := fmt.Sprintf("%T", req.Op)
						mu.Lock()
						failed[name]++
						fail := failed[name] == 1 && req.GetCommit() != nil
						mu.Unlock()
						if !fail {
							return m.Do(ctx, req)
						}
						if arrives {
							_, _ = m.Do(ctx, req)
						}
						return nil, &moraine.Error{Kind: moraine.Unavailable, Err: errors.New("the answer was lost")}
					}))
				}
				c, err := w.ClientOver(w.ctx, "c1", client.Config{Level: moraine.Memory}, lossy)
				require.NoError(t, err)
				defer c.Close()
				f, err := c.Create(w.ctx, "/f", client.CreateOptions{})
				require.NoError(t, err)
				w.files["/f"] = noise(3, 700_000)
				_, err = f.Write(w.files["/f"])
				require.NoError(t, err)
				_, err = f.Commit(w.ctx)
				require.NoError(t, err)
				require.NoError(t, w.admin.Inodes().WaitNVMe(w.ctx, w.inode("/f")))
				require.Equal(t, moraine.NVMe, w.level("/f"))
				w.readAll()
			})
		})
	}
}

// TestSyncWaitsForTheDevices: when a handle's Sync returns, its bytes flushed at
// level memory are on the devices.
func TestSyncWaitsForTheDevices(t *testing.T) {
	s := &stall{nodes: map[string]chan struct{}{}}
	inWorld(t, incluster.Options{Chunkservers: 6, Rule: s.rule}, func(w *world) {
		defer s.end()
		w.save("/f", noise(4, 20_000))
		require.NoError(t, w.admin.Inodes().WaitNVMe(w.ctx, w.inode("/f")))
		s.begin("n1", "n2", "n3", "n4", "n5", "n6")
		h, err := w.admin.Inodes().OpenHandle(w.ctx, w.inode("/f"), client.HandleOptions{Level: moraine.Memory})
		require.NoError(t, err)
		_, err = h.WriteAt(w.ctx, []byte("more"), 20_000)
		require.NoError(t, err)
		require.NoError(t, h.Flush(w.ctx))
		require.Equal(t, moraine.Memory, w.level("/f"))
		time.AfterFunc(10*time.Second, s.end)
		began := time.Now()
		require.NoError(t, h.Sync(w.ctx))
		require.GreaterOrEqual(t, time.Since(began), 10*time.Second)
		require.Equal(t, moraine.NVMe, w.level("/f"))
		require.NoError(t, h.Close(w.ctx))
	})
}
