package histories_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// cacheEntries limits the caches of the clients that have one.
const cacheEntries = 1000

// serve performs an operation. With a cache, operations that the cache may answer
// use the client's methods; all others are requests.
func (w *worker) serve(ctx context.Context, p *playground, in input) (*wire.MetaResponse, error) {
	if w.cache == nil {
		return w.meta.Meta(ctx, request(p, in, w.devices))
	}
	switch in.verb {
	case lookup:
		dir, name := p.place(in.in, in.slot)
		if in.byPath && in.in == 0 {
			return entry(w.cache.Lstat(ctx, p.paths[in.slot/namesOfDir]+"/"+name))
		}
		return entry(w.cache.Inodes().Lookup(ctx, moraine.InodeID(dir), name))
	case stat:
		return entry(w.cache.Inodes().Stat(ctx, moraine.InodeID(in.id)))
	case readdir:
		return listing(ctx, w.cache, moraine.InodeID(p.listed(in)))
	case getxattr:
		v, err := w.cache.Xattrs().Get(ctx, moraine.InodeID(in.id), "user.x")
		return &wire.MetaResponse{Result: &wire.MetaResponse_Xattr{Xattr: &wire.XattrReply{Value: v}}}, err
	}
	return rawclient.Of(w.cache).Meta(ctx, request(p, in, w.devices))
}

func entry(a client.Attr, err error) (*wire.MetaResponse, error) {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Entry{Entry: &wire.EntryReply{Attr: messageOf(a)}}}, err
}

// messageOf is what attributes reads of an answer.
func messageOf(a client.Attr) *wire.Attr {
	m := &wire.Attr{Inode: uint64(a.Inode()), Mode: a.Mode(), Uid: a.UID(), Gid: a.GID(), Nlink: a.Nlink(), Target: a.Target(), Size: uint64(a.Size())}
	if a.IsDir() {
		m.Type = wire.FileType_FILE_TYPE_DIRECTORY
	}
	return m
}

// listing reads a directory of an arena, which fits a page.
func listing(ctx context.Context, c *client.Client, dir moraine.InodeID) (*wire.MetaResponse, error) {
	r := &wire.ReadDirReply{}
	for e, err := range c.Inodes().ReadDir(ctx, dir) {
		if err != nil {
			return nil, err
		}
		r.Entries = append(r.Entries, &wire.DirEntry{Name: e.Name, Attr: messageOf(e.Attr)})
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_ReadDir{ReadDir: r}}, nil
}

// tooLong is the mutant that only disconnected clients reveal.
const tooLong = "a client that trusts its leases for too long"

// Mutants of leases. In each a holder of leases acknowledges a change that it
// continues to contradict, as under a broken server or client.
var leaseMutants = map[string]incluster.Requests{
	// A leader that does not wait until a recall is carried out: the recall is
	// acknowledged before the client receives it.
	"a leader that does not wait for recalls": func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		resp, err := m.Do(ctx, req)
		if l := resp.GetLeases(); err == nil && len(l.GetRecalls()) > 0 {
			ack := &wire.MetaRequest{Session: req.Session, Op: &wire.MetaRequest_Leases{Leases: &wire.Leases{
				Epoch: req.GetLeases().Epoch, Ack: l.Recalls[len(l.Recalls)-1].Number}}}
			if _, err := m.Do(ctx, ack); err != nil {
				return nil, err
			}
			time.Sleep(200 * time.Millisecond)
		}
		return resp, err
	},
	// A client that trusts its leases for longer than three quarters of the term.
	tooLong: func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		resp, err := m.Do(ctx, req)
		if l := resp.GetLeases(); err == nil && l != nil {
			l.TermMillis *= 4
		}
		return resp, err
	},
	// A client that reports a fresh start, and still trusts its earlier leases: it
	// drops nothing of what it must drop.
	"a client that keeps what it was to drop": func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		resp, err := m.Do(ctx, req)
		if l := resp.GetLeases(); err == nil && req.GetLeases().GetBegin() {
			for _, r := range l.GetRecalls() {
				r.All, r.Touches = false, nil
			}
		}
		return resp, err
	},
}

// TestBrokenLeasesAreCaught runs the checker on leases that are broken in one
// place. It detects each in one of a few histories. TestEverythingIsLinearizable
// runs the shipped servers and clients with the same choices. Only the long form
// runs it.
func TestBrokenLeasesAreCaught(t *testing.T) {
	testseed.OnlyLong(t)
	const most = 200
	first := testseed.From(t, 1)
	for name, mutant := range leaseMutants {
		t.Run(name, func(t *testing.T) {
			for seed := first; seed < first+most; seed++ {
				o := options{seed: seed, clients: 8, cached: 6, arenas: 2, lasts: 10 * time.Second, client: mutant, cuts: name == tooLong}
				if r, _ := playOne(t, o).h.verdict(); r == porcupine.Illegal {
					t.Logf("found with seed %d, the %d. history", seed, seed-first+1)
					return
				}
			}
			t.Fatalf("nobody noticed, seeds %d to %d", first, first+most-1)
		})
	}
}

// TestCachesAnswerInHistories checks that the histories do have answers from
// caches.
func TestCachesAnswerInHistories(t *testing.T) {
	seed := testseed.First(t)
	out := playOne(t, options{seed: seed, clients: 8, cached: 8, arenas: 4, lasts: 2 * time.Second, calm: true})
	r, at := out.h.verdict()
	require.Equal(t, porcupine.Ok, r, "arena %d", at)
	require.Positive(t, out.hits, "of %d operations none was answered from a cache", out.ops)
	t.Logf("%d operations, %d answers from caches", out.ops, out.hits)
}

// sleepClient stops the process of a client: time continues without it.
func (n *nemesis) sleepClient(string) error {
	c := n.rng.IntN(len(n.clients))
	n.note("%s sleeps", n.clients[c])
	n.naps[c].Begin()
	return nil
}

// suspend suspends the machine of a client: its monotonic clock stands still, too.
func (n *nemesis) suspend(string) error {
	c := n.rng.IntN(len(n.clients))
	n.note("%s is suspended", n.clients[c])
	began := time.Now()
	n.naps[c].Begin()
	n.wakes = append(n.wakes, func() {
		n.clocks.hands(n.clients[c]).Slept(time.Since(began))
		n.naps[c].End()
	})
	return nil
}

// cutClient disconnects a client, in both directions or in one.
func (n *nemesis) cutClient(string) error {
	c := n.clients[n.rng.IntN(len(n.clients))]
	if n.cuts { // a read-only one: none of its requests has an unknown outcome
		c = n.clients[2*n.rng.IntN(2)]
	}
	how := n.rng.IntN(3)
	n.note("%s is cut off, %d", c, how)
	for _, s := range servers {
		if how != 1 {
			n.c.Net.Cut(c, s)
		}
		if how != 2 {
			n.c.Net.Cut(s, c)
		}
	}
	return nil
}

// wake ends every sleep.
func (n *nemesis) wake() {
	for _, wake := range n.wakes {
		wake()
	}
	n.wakes = nil
	for _, nap := range n.naps {
		nap.End()
	}
}

// clientName is the name of the i-th client.
func clientName(i int) string { return fmt.Sprint("c", i+1) }
