package leases_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// alone is the settings of a client that requests exclusive leases.
var alone = client.Config{CacheEntries: 10_000, Patience: time.Minute, ExclusiveLeases: true}

// maker makes files in one directory, through a client whose requests it counts.
type maker struct {
	*incluster.Client
	dir                                   moraine.InodeID
	holds, batches, ends, creates, others atomic.Int64
	// do is the layer for its requests; nil: none.
	do incluster.Requests
}

func newMaker(t *testing.T, ctx context.Context, c *incluster.Cluster, do incluster.Requests) *maker {
	t.Helper()
	m := &maker{do: do}
	if do == nil {
		m.do = incluster.Plain
	}
	cl, err := c.ClientOver(ctx, "w", alone, func(d transport.Dialer) transport.Dialer { return incluster.Through(d, m.count) })
	require.NoError(t, err)
	m.Client = cl
	a, err := cl.Mkdir(ctx, "d", 0)
	require.NoError(t, err)
	m.dir = moraine.InodeID(a.Inode)
	warm(t, ctx, cl)
	return m
}

func (m *maker) count(ctx context.Context, to transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	switch op := req.Op.(type) {
	case *wire.MetaRequest_Hold:
		m.holds.Add(1)
	case *wire.MetaRequest_Batch:
		m.batches.Add(1)
		for _, r := range op.Batch.Requests {
			if r.GetEndHold() != nil {
				m.ends.Add(1)
			}
		}
	case *wire.MetaRequest_Create:
		m.creates.Add(1)
	case *wire.MetaRequest_Leases, *wire.MetaRequest_RenewSession:
	default:
		m.others.Add(1)
	}
	return m.do(ctx, to, req)
}

func (m *maker) make(ctx context.Context, name string) (*wire.Attr, error) {
	return m.Inodes().Create(ctx, m.dir, name, client.NodeOptions{Mode: 0o640, Exclusive: true, Later: &client.Later{}})
}

// hold makes files until one was made without a request.
func (m *maker) hold(t *testing.T, ctx context.Context, prefix string) (made []string) {
	t.Helper()
	for i := range 20 {
		before := m.creates.Load() + m.others.Load() + m.holds.Load()
		name := fmt.Sprintf("%s%02d", prefix, i)
		_, err := m.make(ctx, name)
		require.NoError(t, err)
		made = append(made, name)
		if m.creates.Load()+m.others.Load()+m.holds.Load() == before {
			return made
		}
	}
	t.Fatal("the client gets no exclusive lease")
	return nil
}

func TestFilesAreMadeWithoutARequestAndSeenByAll(t *testing.T) {
	inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
		m := newMaker(t, ctx, c, nil)
		defer m.Close()
		r := open(t, ctx, c, "r", cached)
		defer r.Close()
		warm(t, ctx, r)
		require.Empty(t, list(t, ctx, r, "d")) // it has the listing cached
		want := m.hold(t, ctx, "a")
		before := m.creates.Load() + m.others.Load() + m.batches.Load()
		numbers := map[string]uint64{}
		for i := range 100 {
			name := fmt.Sprintf("b%03d", i)
			a, err := m.make(ctx, name)
			require.NoError(t, err)
			want, numbers[name] = append(want, name), a.Inode
			got, err := m.Inodes().Lookup(ctx, m.dir, name)
			require.NoError(t, err)
			require.Equal(t, a, got)
			if i == 0 {
				_, err = m.make(ctx, name)
				require.ErrorIs(t, err, moraine.Exists)
			}
		}
		t.Logf("%d requests for 100 files", m.creates.Load()+m.others.Load()+m.batches.Load()-before)
		require.Less(t, m.creates.Load()+m.others.Load()+m.batches.Load()-before, int64(20))
		require.Equal(t, want, list(t, ctx, r, "d"))
		for name, inode := range numbers {
			a, err := r.Stat(ctx, "d/"+name)
			require.NoError(t, err)
			require.Equal(t, inode, a.Inode)
			require.Equal(t, uint32(0o640), a.Mode)
		}
		require.Equal(t, want, list(t, ctx, m.Client, "d"))
		// After another client wanted the directory, the lease is not requested
		// again at once.
		_, err := m.make(ctx, "c")
		require.NoError(t, err)
		require.Equal(t, append(want, "c"), list(t, ctx, r, "d"))
	})
}

// Another client's operations in the directory see what was made there before, with
// every kind of request.
func TestOtherClientsSeeWhatWasMade(t *testing.T) {
	for what, do := range map[string]func(ctx context.Context, r *incluster.Client, dir moraine.InodeID) error{
		"create": func(ctx context.Context, r *incluster.Client, dir moraine.InodeID) error {
			_, err := r.Inodes().Create(ctx, dir, "x", client.NodeOptions{Exclusive: true})
			return wantKind(err, moraine.Exists)
		},
		"look-up": func(ctx context.Context, r *incluster.Client, dir moraine.InodeID) error {
			_, err := r.Inodes().Lookup(ctx, dir, "x")
			return err
		},
		"walk": func(ctx context.Context, r *incluster.Client, _ moraine.InodeID) error {
			_, err := r.Stat(ctx, "d/x")
			return err
		},
		"remove": func(ctx context.Context, r *incluster.Client, dir moraine.InodeID) error {
			_, err := r.Inodes().Remove(ctx, dir, "x", client.RemoveOptions{})
			return err
		},
		"removal of the directory": func(ctx context.Context, r *incluster.Client, _ moraine.InodeID) error {
			_, err := r.Inodes().Remove(ctx, r.Root(), "d", client.RemoveOptions{Directory: true})
			return wantKind(err, moraine.NotEmpty)
		},
		"rename over it": func(ctx context.Context, r *incluster.Client, dir moraine.InodeID) error {
			return wantKind(r.Inodes().Rename(ctx, client.Entry{Parent: r.Root(), Name: "f"}, client.Entry{Parent: dir, Name: "x"},
				client.RenameOptions{NoReplace: true}), moraine.Exists)
		},
		"rename of it": func(ctx context.Context, r *incluster.Client, dir moraine.InodeID) error {
			return r.Inodes().Rename(ctx, client.Entry{Parent: dir, Name: "x"}, client.Entry{Parent: r.Root(), Name: "y"}, client.RenameOptions{})
		},
		"rename of a directory over the directory": func(ctx context.Context, r *incluster.Client, _ moraine.InodeID) error {
			return wantKind(r.Inodes().Rename(ctx, client.Entry{Parent: r.Root(), Name: "e"}, client.Entry{Parent: r.Root(), Name: "d"},
				client.RenameOptions{}), moraine.NotEmpty)
		},
		"hard link": func(ctx context.Context, r *incluster.Client, dir moraine.InodeID) error {
			f, err := r.Inodes().Lookup(ctx, r.Root(), "f")
			if err == nil {
				_, err = r.Inodes().Link(ctx, moraine.InodeID(f.Inode), dir, "x")
			}
			return wantKind(err, moraine.Exists)
		},
		"the directory's time": func(ctx context.Context, r *incluster.Client, dir moraine.InodeID) error {
			a, err := r.Inodes().Stat(ctx, dir)
			if err == nil {
				_, err = r.Inodes().Lookup(ctx, dir, "x")
			}
			if err == nil {
				var b *wire.Attr
				if b, err = r.Inodes().Stat(ctx, dir); err == nil && b.Mtime != a.Mtime {
					err = fmt.Errorf("the time of the directory was that of before")
				}
			}
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
				m := newMaker(t, ctx, c, nil)
				defer m.Close()
				r := open(t, ctx, c, "r", cached)
				defer r.Close()
				_, err := r.Mkdir(ctx, "e", 0)
				require.NoError(t, err)
				_, err = r.Inodes().Create(ctx, r.Root(), "f", client.NodeOptions{})
				require.NoError(t, err)
				m.hold(t, ctx, "a")
				_, err = m.make(ctx, "x")
				require.NoError(t, err)
				require.Zero(t, m.ends.Load())
				require.NoError(t, do(ctx, r, m.dir))
			})
		})
	}
}

func wantKind(err error, kind moraine.Kind) error {
	if moraine.KindOf(err) == kind {
		return nil
	}
	return fmt.Errorf("want %s: %w", kind, err)
}

// TestExclusiveFaults makes each step of a client with an exclusive lease fail in
// each way. The other client always sees everything made before. If it sees a file,
// it sees all files made earlier.
func TestExclusiveFaults(t *testing.T) {
	runs := testseed.Sample(t, 3)
	is := func(req *wire.MetaRequest) string {
		switch op := req.Op.(type) {
		case *wire.MetaRequest_Hold:
			return "hold"
		case *wire.MetaRequest_Batch:
			for _, r := range op.Batch.Requests {
				if r.GetEndHold() != nil {
					return "end"
				}
			}
			return "batch"
		}
		return kind(req)
	}
	for _, step := range []string{"hold", "batch", "end", "poll", "renew"} {
		for name, wrong := range wrongs {
			if !runs() {
				continue
			}
			t.Run(step+" "+name, func(t *testing.T) {
				inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
					var mu sync.Mutex
					hit := false
					m := newMaker(t, ctx, c, func(ctx context.Context, to transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
						mu.Lock()
						now := !hit && is(req) == step
						hit = hit || now
						mu.Unlock()
						do := func(ctx context.Context) (*wire.MetaResponse, error) { return to.Do(ctx, req) }
						if now {
							return wrong(ctx, do)
						}
						return do(ctx)
					})
					defer m.Close()
					r := open(t, ctx, c, "r", cached)
					defer r.Close()
					var want []string
					for i := range 120 {
						name := fmt.Sprintf("f%04d", i)
						_, err := m.make(ctx, name)
						require.NoError(t, err)
						want = append(want, name)
						if i%40 == 39 {
							require.Equal(t, want, list(t, ctx, r, "d"), "after %d files", i+1)
							time.Sleep(6 * time.Second) // the pause after the recall
						} else {
							time.Sleep(40 * time.Millisecond) // so long that files are sent before the recall
						}
					}
					require.Equal(t, want, list(t, ctx, m.Client, "d"))
					require.Positive(t, m.holds.Load())
					mu.Lock()
					defer mu.Unlock()
					require.True(t, hit, "nothing was struck")
				})
			})
		}
	}
}

// After the leader's death the next one shows nothing of the directory before the
// holder has sent what it had made.
func TestExclusiveLeasesSurviveALeader(t *testing.T) {
	inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
		m := newMaker(t, ctx, c, nil)
		defer m.Close()
		r := open(t, ctx, c, "r", cached)
		defer r.Close()
		for round := range 3 {
			want := append(list(t, ctx, r, "d"), m.hold(t, ctx, fmt.Sprint(round, "a"))...)
			name := fmt.Sprint(round, "b")
			_, err := m.make(ctx, name)
			require.NoError(t, err)
			killed := c.Leader()
			c.Kill(killed)
			require.Equal(t, append(want, name), list(t, ctx, r, "d"))
			require.NoError(t, c.Restart(killed))
			time.Sleep(10 * time.Second)
		}
	})
}

// A client that sleeps past its leases loses the directory to a client that wants
// it. Its unsent files are there when it is back. If another client made the name
// meanwhile, the user of the open file gets an error.
func TestASleeperLosesTheDirectory(t *testing.T) {
	inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
		nap := &incluster.Nap{}
		m := newMaker(t, ctx, c, nap.Over(incluster.Plain))
		defer m.Close()
		r := open(t, ctx, c, "r", cached)
		defer r.Close()
		m.hold(t, ctx, "a")
		list(t, ctx, m.Client, "d") // everything is sent
		time.Sleep(6 * time.Second)
		m.hold(t, ctx, "a2")
		want := list(t, ctx, m.Client, "d")
		x, err := m.make(ctx, "x")
		require.NoError(t, err)
		y, err := m.make(ctx, "y")
		require.NoError(t, err)
		hx, err := m.Inodes().OpenHandle(ctx, moraine.InodeID(x.Inode), client.HandleOptions{})
		require.NoError(t, err)
		hy, err := m.Inodes().OpenHandle(ctx, moraine.InodeID(y.Inode), client.HandleOptions{})
		require.NoError(t, err)
		nap.Begin()
		began := time.Now()
		require.Equal(t, want, list(t, ctx, r, "d"))
		require.Less(t, time.Since(began), 10*time.Second)
		other, err := r.Inodes().Create(ctx, m.dir, "x", client.NodeOptions{Exclusive: true})
		require.NoError(t, err)
		nap.End()
		require.NoError(t, hy.Close(ctx))
		require.ErrorIs(t, hx.Flush(ctx), moraine.IOError)
		require.ErrorIs(t, hx.Close(ctx), moraine.IOError)
		require.Equal(t, append(want, "x", "y"), list(t, ctx, r, "d"))
		a, err := m.Inodes().Lookup(ctx, m.dir, "x")
		require.NoError(t, err)
		require.Equal(t, other.Inode, a.Inode)
	})
}

// Unsent files are lost with the session, and their flush reports it.
func TestWhatWasMadeGoesWithTheSession(t *testing.T) {
	inClusterWith(t, incluster.Options{Seed: 1, Chunkservers: 1, SessionTimeout: 8 * time.Second}, func(ctx context.Context, c *incluster.Cluster) {
		nap := &incluster.Nap{}
		m := newMaker(t, ctx, c, nap.Over(incluster.Plain))
		defer m.Close()
		m.hold(t, ctx, "a")
		want := list(t, ctx, m.Client, "d")
		a, err := m.make(ctx, "x")
		require.NoError(t, err)
		h, err := m.Inodes().OpenHandle(ctx, moraine.InodeID(a.Inode), client.HandleOptions{})
		require.NoError(t, err)
		nap.Begin()
		time.Sleep(20 * time.Second)
		nap.End()
		require.ErrorIs(t, h.Close(ctx), moraine.IOError)
		require.Equal(t, want, list(t, ctx, m.Client, "d"))
	})
}

// If a quota has no space for a file, its flush reports it, and later files are
// made.
func TestAQuotaIsMetByTheFlush(t *testing.T) {
	inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
		m := newMaker(t, ctx, c, nil)
		defer m.Close()
		admin, err := c.Admin(ctx, "admin")
		require.NoError(t, err)
		defer admin.Close()
		made := m.hold(t, ctx, "a")
		// Nobody has an exclusive lease of the root.
		u, err := admin.Quotas().Usage(ctx, m.Root())
		require.NoError(t, err)
		require.NoError(t, admin.Quotas().Set(ctx, m.Root(), 0, u.Usage.Inodes+uint64(len(made))+1))
		var handles []*client.Handle
		for i := range 12 {
			a, err := m.make(ctx, fmt.Sprintf("q%02d", i))
			require.NoError(t, err)
			h, err := m.Inodes().OpenHandle(ctx, moraine.InodeID(a.Inode), client.HandleOptions{})
			require.NoError(t, err)
			handles = append(handles, h)
		}
		failed := 0
		for _, h := range handles {
			if err := h.Close(ctx); err != nil {
				require.ErrorIs(t, err, moraine.QuotaExceeded)
				failed++
			}
		}
		require.Positive(t, failed)
		require.Len(t, list(t, ctx, m.Client, "d"), len(made)+len(handles)-failed)
	})
}

// Two clients that both make files in a directory take turns, and neither misses
// the other's files.
func TestTwoContend(t *testing.T) {
	inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
		m := newMaker(t, ctx, c, nil)
		defer m.Close()
		o := open(t, ctx, c, "o", alone)
		defer o.Close()
		warm(t, ctx, o)
		both := []*incluster.Client{m.Client, o}
		for i := range 200 {
			name := fmt.Sprintf("f%03d", i)
			one, two := both[i/7%2], both[(i/7+1)%2]
			_, err := one.Inodes().Create(ctx, m.dir, name, client.NodeOptions{Exclusive: true, Later: &client.Later{}})
			require.NoError(t, err)
			_, err = two.Inodes().Create(ctx, m.dir, name, client.NodeOptions{Exclusive: true, Later: &client.Later{}})
			require.ErrorIs(t, err, moraine.Exists)
			time.Sleep(time.Duration(i%5) * 50 * time.Millisecond)
		}
		require.Len(t, list(t, ctx, o, "d"), 200)
	})
}
