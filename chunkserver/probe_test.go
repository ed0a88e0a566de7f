package chunkserver_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// network decides what the probes of a host find.
type network struct {
	mu    sync.Mutex
	tried map[string]int
	bad   map[string]error
}

func (n *network) probe(_ context.Context, role transport.Role, node, addr string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := string(role) + " " + node + " " + addr
	n.tried[name]++
	return n.bad[addr]
}

func (n *network) count(name string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.tried[name]
}

func (n *network) set(addr string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bad[addr] = err
}

// said is what the last heartbeat reported about a server.
func (f *fakeMeta) said(node string) *wire.Probe {
	if len(f.beats) == 0 {
		return nil
	}
	for _, p := range f.beats[len(f.beats)-1].Probes {
		if p.Node == node {
			return p
		}
	}
	return nil
}

// TestServersAreTried: a chunkserver probes each address of the servers that the
// metadata service names, except unix sockets, and reports the results with its
// heartbeats. It soon probes a failed one again, and at once one with another mark.
// It no longer reports one that is no longer named.
func TestServersAreTried(t *testing.T) {
	meta, fsys := newFakeMeta(), vfs.NewMem(1)
	net := &network{tried: map[string]int{}, bad: map[string]error{}}
	net.set("b2", errors.New("refused"))
	target := func(node string, mark uint64, addrs ...string) *wire.ProbeTarget {
		return &wire.ProbeTarget{Role: "chunkserver", Node: node, Mark: mark, Addresses: addrs}
	}
	meta.set(func() {
		meta.targets = []*wire.ProbeTarget{target("n2", 1, "a1", "a2", "unix:/a"), target("n3", 1, "b1", "b2")}
	})
	h := startDeps(t, meta, config("/a"), chunkserver.Deps{Meta: meta, FS: fsys, Probe: net.probe})
	h.waitFor(t, func() bool { return meta.said("n2") != nil && meta.said("n3") != nil })
	var two, three *wire.Probe
	meta.set(func() { two, three = meta.said("n2"), meta.said("n3") })
	require.Empty(t, two.Error)
	require.EqualValues(t, 1, two.Mark)
	require.Contains(t, three.Error, "b2: refused")
	require.Equal(t, 1, net.count("chunkserver n2 a1"))
	require.Equal(t, 1, net.count("chunkserver n2 a2"))
	require.Zero(t, net.count("chunkserver n2 unix:/a"))

	net.set("b2", nil)
	h.waitFor(t, func() bool { return meta.said("n3").GetMark() == 1 && meta.said("n3").Error == "" })
	net.set("a1", errors.New("expired"))
	meta.set(func() { meta.targets = []*wire.ProbeTarget{target("n2", 2, "a1", "a2")} })
	h.waitFor(t, func() bool { p := meta.said("n2"); return p.GetMark() == 2 && p.Error == "a1: expired" })
	meta.set(func() { three = meta.said("n3") })
	require.Nil(t, three)
}

// watched is a bucket whose health a test sets.
type watched struct {
	mu     sync.Mutex
	health object.Health
	asked  int
}

func (w *watched) Get(context.Context, object.Ref, int64, []byte) error {
	return errors.New("not used")
}

func (w *watched) Health() object.Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.health
}

func (w *watched) Watch(context.Context, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
}

func (w *watched) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked
}

func (w *watched) set(h object.Health) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.health = h
}

// TestBucketHealthGoesWithHeartbeats: a host probes an idle bucket at its start,
// and reports the bucket's health with each heartbeat.
func TestBucketHealthGoesWithHeartbeats(t *testing.T) {
	meta, b := newFakeMeta(), &watched{}
	h := startWith(t, vfs.NewMem(1), meta, config("/a"), b)
	last := func() *wire.BucketHealth {
		if len(meta.beats) == 0 {
			return nil
		}
		return meta.beats[len(meta.beats)-1].Bucket
	}
	h.waitFor(t, func() bool { return last() != nil && !last().Tried && b.count() > 0 })
	b.set(object.Health{Tried: true, Err: errors.New("no route"), Since: time.Now().Add(-time.Minute)})
	h.waitFor(t, func() bool { return last().Tried && last().Error == "no route" && last().SinceMillis >= 60_000 })
	b.set(object.Health{Tried: true, Since: time.Now()})
	h.waitFor(t, func() bool { return last().Tried && last().Error == "" && last().SinceMillis < 60_000 })
}

// TestWhateverABucketSaysHeartbeatsGoOn: heartbeats quote the answer of a failing
// store, which may be no text at all, or have multi-byte characters. If a heartbeat
// could not be encoded, the host would be declared dead.
func TestWhateverABucketSaysHeartbeatsGoOn(t *testing.T) {
	for _, said := range []string{"502 gr\xfc\xdfe \xff", "x" + strings.Repeat("é", 400), strings.Repeat("日本", 200)} {
		meta, b := newFakeMeta(), &watched{}
		b.set(object.Health{Tried: true, Err: errors.New(said), Since: time.Now()})
		h := startWith(t, vfs.NewMem(1), meta, config("/a"), b)
		h.waitFor(t, func() bool { return len(meta.beats) > 0 && meta.beats[len(meta.beats)-1].Bucket.Error != "" })
	}
}
