package mover_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

var packs = memcluster.Options{RewriteEvery: 20 * time.Second, PackAfter: time.Minute, BackupHorizon: 2 * time.Minute, RepairGrace: 20 * time.Second}

// smalls are many small files.
type smalls struct {
	t    *testing.T
	c    *memcluster.Cluster
	cl   *client.Client
	data map[string][]byte // by path
}

func newSmalls(t *testing.T, c *memcluster.Cluster) *smalls {
	t.Helper()
	s := &smalls{t: t, c: c, cl: c.Client("writer"), data: map[string][]byte{}}
	c.AtStop(func() { s.cl.Close() })
	return s
}

// make makes n files in a directory, of 500 to 8,000 bytes.
func (s *smalls) make(dir string, n int) {
	s.t.Helper()
	if dir != "" {
		_, err := s.cl.MkdirAll(s.t.Context(), dir, 0o755)
		require.NoError(s.t, err)
	}
	for i := range n {
		s.write(fmt.Sprintf("%s/f%03d", dir, i), random(uint64(len(s.data)), 500+i*7919%7500), client.CreateOptions{})
	}
}

func (s *smalls) write(name string, b []byte, opts client.CreateOptions) {
	s.t.Helper()
	f, err := s.cl.Create(s.t.Context(), name, opts)
	require.NoError(s.t, err)
	_, err = f.Write(b)
	require.NoError(s.t, err)
	_, err = f.Commit(s.t.Context())
	require.NoError(s.t, err)
	s.data[name] = b
}

// overwrite overwrites a part of a file, durably.
func (s *smalls) overwrite(name string, off int, b []byte) {
	s.t.Helper()
	h, err := s.cl.Inodes().OpenHandle(s.t.Context(), s.attr(name).Inode(), client.HandleOptions{})
	require.NoError(s.t, err)
	_, err = h.WriteAt(s.t.Context(), b, int64(off))
	require.NoError(s.t, err)
	require.NoError(s.t, h.Sync(s.t.Context()))
	require.NoError(s.t, h.Close(s.t.Context()))
	now := slices.Clone(s.data[name])
	copy(now[off:], b)
	s.data[name] = now
}

func (s *smalls) remove(name string) {
	s.t.Helper()
	require.NoError(s.t, s.cl.Remove(s.t.Context(), name))
	delete(s.data, name)
}

func (s *smalls) attr(name string) client.Attr {
	s.t.Helper()
	a, err := s.cl.Stat(s.t.Context(), name)
	require.NoError(s.t, err)
	return a
}

func (s *smalls) extents(name string) *wire.ExtentsReply {
	s.t.Helper()
	resp, err := s.c.Ask(transport.RoleAdmin, "admin", &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: uint64(s.attr(name).Inode())}}})
	require.NoError(s.t, err)
	return resp.GetExtents()
}

// stripes are the stripes of all files.
func (s *smalls) stripes() map[uint64]*wire.Stripe {
	s.t.Helper()
	out := map[uint64]*wire.Stripe{}
	for name := range s.data {
		for _, st := range s.extents(name).Stripes {
			out[st.Id] = st
		}
	}
	return out
}

// room is the size of all chunks of all files' stripes.
func (s *smalls) room() (n int64) {
	for _, st := range s.stripes() {
		scheme := moraine.Scheme{K: uint8(st.Scheme.K), M: uint8(st.Scheme.M)}
		n += int64(scheme.Chunks()) * scheme.ChunkLen(int64(st.Length))
	}
	return n
}

func (s *smalls) bytes() (n int64) {
	for _, b := range s.data {
		n += int64(len(b))
	}
	return n
}

// hold reads every file again and compares it.
func (s *smalls) hold() {
	s.t.Helper()
	cl := s.c.Client("reader")
	defer cl.Close()
	for _, name := range slices.Sorted(maps.Keys(s.data)) {
		r, err := cl.OpenFile(s.t.Context(), name)
		require.NoError(s.t, err)
		have := make([]byte, len(s.data[name])+1)
		n, err := r.ReadAt(s.t.Context(), have, 0)
		require.ErrorIs(s.t, err, io.EOF, name)
		require.NoError(s.t, r.Close())
		require.True(s.t, bytes.Equal(have[:n], s.data[name]), "%s reads as other bytes", name)
	}
}

// looks waits until n more looks of the leader have ended, and no job is left.
func (s *smalls) looks(n uint64) *wire.Rewriting {
	s.t.Helper()
	from := status(s.t, s.c).GetRewriting().GetRounds()
	eventually(s.t, 10*time.Minute, "looks", func() bool {
		r := status(s.t, s.c).GetRewriting()
		return r.GetRounds() >= from+n && !r.GetLooking() && len(running(s.t, s.c)) == 0
	})
	return status(s.t, s.c).GetRewriting()
}

// eventually waits until ok, which it calls seldom: ok checks all files.
func (s *smalls) eventually(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(10 * time.Minute); !ok(); time.Sleep(5 * time.Second) {
		require.True(s.t, time.Now().Before(end), what)
	}
}

// packed waits until all files lie in at most n stripes.
func (s *smalls) packed(n int) {
	s.t.Helper()
	s.eventually("the files are packed", func() bool { return len(s.stripes()) <= n && len(running(s.t, s.c)) == 0 })
}

// TestPacksSmallFiles: unchanged small files of several directories of a project end up in few
// coded stripes. Their content and times stay, and the mover then leaves them alone. They take
// little more than half the space. After most are removed, the others leave the mostly dead
// stripes.
func TestPacksSmallFiles(t *testing.T) {
	inCluster(t, packs, func(t *testing.T, c *memcluster.Cluster) {
		s := newSmalls(t, c)
		s.make("/p/q/a", 100)
		s.make("/p/q/b/c", 100)
		require.Len(t, s.stripes(), 200)
		before, room := map[string]string{}, s.room()
		for name := range s.data {
			before[name] = s.attr(name).String()
		}
		s.hold()
		startMover(t, c, "n1")
		s.packed(6)
		for id, st := range s.stripes() {
			require.EqualValues(t, 4, st.Scheme.K, "%x", id)
			require.EqualValues(t, 2, st.Scheme.M)
		}
		for name := range s.data {
			require.Equal(t, before[name], s.attr(name).String(), name)
		}
		require.Less(t, s.room(), room*6/10, "of %d", room)
		require.Greater(t, room, s.bytes()*3-1)
		s.hold()
		of := s.stripes()
		require.Zero(t, s.looks(3).GetChosenFiles(), "what was packed is not packed again")
		require.Equal(t, slices.Sorted(maps.Keys(of)), slices.Sorted(maps.Keys(s.stripes())))
		require.Zero(t, status(t, c).GetRewriting().GetSharedStripes())

		for n, name := range slices.Sorted(maps.Keys(s.data)) {
			if n%10 != 0 {
				s.remove(name)
			}
		}
		s.eventually("what is left leaves stripes that are mostly dead", func() bool {
			for id := range of {
				if s.stripes()[id] != nil {
					return false
				}
			}
			return len(running(t, c)) == 0
		})
		s.packed(1)
		s.hold()
		r := s.looks(3)
		require.Zero(t, r.GetChosenFiles()+r.GetChosenStripes())
	})
}

// TestPacksColdFilesOnly: the mover packs only files that changed long enough ago, however old
// the stripe is. It does not pack files that should be copies, nor files written with more
// protection than the policy's.
func TestPacksColdFilesOnly(t *testing.T) {
	opts := packs
	opts.Hosts = 8
	opts.PackAfter = 10 * time.Minute
	inCluster(t, opts, func(t *testing.T, c *memcluster.Cluster) {
		s := newSmalls(t, c)
		for _, dir := range []string{"/copies", "/wide"} {
			a, err := s.cl.Mkdir(t.Context(), dir, 0o755)
			require.NoError(t, err)
			scheme := map[string]moraine.Scheme{"/copies": {K: 1, M: 2}, "/wide": {K: 5, M: 3}}[dir]
			require.NoError(t, s.cl.Policies().Set(t.Context(), a.Inode(), client.Policy{Scheme: scheme}))
		}
		s.make("/copies", 20)
		s.make("/wide", 20)
		s.make("/cold", 20)
		for n := range 20 {
			s.write(fmt.Sprintf("/cold/safe%d", n), random(uint64(n), 5000), client.CreateOptions{Scheme: moraine.Copies(4)})
		}
		for n := range 7 {
			s.write(fmt.Sprintf("/cold/large%d", n), random(uint64(n), 300_000), client.CreateOptions{})
		}
		startMover(t, c, "n1")
		time.Sleep(8 * time.Minute)
		s.make("/warm", 20)
		n := len(s.stripes())
		s.looks(1)
		require.Len(t, s.stripes(), n, "nothing is cold yet")
		s.packed(n - 19 - 19)
		of := map[string]map[uint64]bool{}
		for name := range s.data {
			dir := name[:5]
			if of[dir] == nil {
				of[dir] = map[uint64]bool{}
			}
			for _, st := range s.extents(name).Stripes {
				of[dir][st.Id] = true
				if dir == "/wide" {
					require.EqualValues(t, 5, st.Scheme.K)
					require.EqualValues(t, 3, st.Scheme.M)
				}
			}
		}
		require.Len(t, of["/wide"], 1)
		require.Len(t, of["/copi"], 20)
		require.Len(t, of["/warm"], 20)
		s.hold()
		time.Sleep(10 * time.Minute)
		s.looks(2)
		s.packed(n - 19 - 19 - 19)
		s.hold()
	})
}

// TestNoPackingWithoutHosts: if there are too few hosts for the policy's scheme to protect as
// much as the copies do, files stay.
func TestNoPackingWithoutHosts(t *testing.T) {
	opts := packs
	opts.Hosts = 5
	inCluster(t, opts, func(t *testing.T, c *memcluster.Cluster) {
		s := newSmalls(t, c)
		a, err := s.cl.Mkdir(t.Context(), "/d", 0o755)
		require.NoError(t, err)
		require.NoError(t, s.cl.Policies().Set(t.Context(), a.Inode(), client.Policy{Scheme: moraine.Scheme{K: 4, M: 2}}))
		s.make("/d", 20)
		startMover(t, c, "n1")
		time.Sleep(5 * time.Minute)
		require.Zero(t, s.looks(2).GetChosenFiles())
		require.Len(t, s.stripes(), 20)
	})
}

// TestFewSmallFilesAreLeft: fewer than eight files, of less than a coded stripe needs, stay.
func TestFewSmallFilesAreLeft(t *testing.T) {
	inCluster(t, packs, func(t *testing.T, c *memcluster.Cluster) {
		s := newSmalls(t, c)
		s.make("", 7)
		startMover(t, c, "n1")
		time.Sleep(5 * time.Minute)
		require.Zero(t, s.looks(2).GetChosenFiles())
		require.Len(t, s.stripes(), 7)
	})
}

// TestPackBesideOthers: between the mover's look at files and its commit one is written, one
// removed, one cloned, one replaced by another, and one truncated. All have their new content,
// the others are packed, and later so are these.
func TestPackBesideOthers(t *testing.T) {
	inCluster(t, packs, func(t *testing.T, c *memcluster.Cluster) {
		s := newSmalls(t, c)
		s.make("/d", 60)
		var met atomic.Bool
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if opOf(req) == "CommitRewrite" && met.CompareAndSwap(false, true) {
				s.overwrite("/d/f001", 100, random(1000, 300))
				s.remove("/d/f002")
				s.cloneOf("/d/f003", "/d/clone")
				s.write("/d/f004", random(1001, 4000), client.CreateOptions{Replace: true})
				s.overwrite("/d/f005", len(s.data["/d/f005"])-1, []byte{1})
			}
			return nil, nil
		})
		startMover(t, c, "n1")
		eventually(t, 10*time.Minute, "a packing", func() bool { return met.Load() && len(running(t, c)) == 0 })
		c.OnMeta(nil)
		s.hold()
		require.Less(t, len(s.stripes()), 10)
		s.remove("/d/clone")
		s.looks(8)
		s.hold()
	})
}

// cloneOf makes a clone of a file.
func (s *smalls) cloneOf(from, to string) {
	s.t.Helper()
	a := s.attr(from)
	made, err := s.cl.Inodes().CreateEmpty(s.t.Context(), a.Parent(), to[len(to)-5:], 0o644)
	require.NoError(s.t, err)
	_, err = rawclient.Of(s.cl).Meta(s.t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_Clone{Clone: &wire.Clone{Inode: uint64(made.Inode()),
		Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Ranges: []*wire.CloneRange{{Inode: uint64(a.Inode())}}}}})
	require.NoError(s.t, err)
	s.data[to] = s.data[from]
}

// TestPackFaults is the fault table of packing: each request of the mover fails once, and each
// takes effect once with a lost answer. In the end the bytes are right and the files are
// packed, by this job or by that of a later look.
func TestPackFaults(t *testing.T) {
	runs := testseed.Sample(t, 3)
	for _, op := range []string{"LeaseJobs", "GetExtents", "Grant", "CommitRewrite", "FinishJob"} {
		for _, kind := range []moraine.Kind{moraine.Unavailable, moraine.Internal} {
			for _, lost := range []bool{false, true} {
				if !runs() {
					continue
				}
				t.Run(fmt.Sprintf("%s %s lost=%v", op, kind, lost), func(t *testing.T) {
					inCluster(t, packs, func(t *testing.T, c *memcluster.Cluster) {
						s := newSmalls(t, c)
						s.make("/d", 40)
						hook, fired := once(op, kind, lost)
						c.OnMeta(hook)
						startMover(t, c, "n1")
						eventually(t, 5*time.Minute, "the fault", fired.Load)
						c.OnMeta(nil)
						s.packed(2)
						s.hold()
					})
				})
			}
		}
	}
}

// TestPackGoesOnPastABadFile: the mover leaves out an unreadable file, and packs it once it is
// readable.
func TestPackGoesOnPastABadFile(t *testing.T) {
	opts := packs
	opts.Hosts = 10 // three are avoided because of their failures
	inCluster(t, opts, func(t *testing.T, c *memcluster.Cluster) {
		s := newSmalls(t, c)
		s.make("/p/q/d", 40)
		bad := s.extents("/p/q/d/f000").Stripes[0].Id
		for _, h := range c.Hosts {
			h.Before(func(_ context.Context, req any) error {
				if get, ok := req.(*wire.GetChunk); ok && get.GetStripe() == bad {
					return &moraine.Error{Kind: moraine.IOError}
				}
				return nil
			})
		}
		startMover(t, c, "n1")
		s.eventually("the others are packed", func() bool { return len(s.stripes()) <= 3 })
		require.Contains(t, s.stripes(), bad)
		for _, h := range c.Hosts {
			h.Before(nil)
		}
		s.make("/p/q/e", 10) // one file alone is not packed
		s.eventually("it is packed", func() bool { return s.stripes()[bad] == nil })
		s.hold()
	})
}

// TestOnlyRepairsAreOfHighPriority: a mover's requests to chunkservers have low priority when
// it packs files, and not when it repairs them.
func TestOnlyRepairsAreOfHighPriority(t *testing.T) {
	opts := packs
	opts.Hosts = 8
	inCluster(t, opts, func(t *testing.T, c *memcluster.Cluster) {
		s := newSmalls(t, c)
		s.make("/a", 100)
		var low, high [2]atomic.Int64 // reads, writes
		for _, h := range c.Hosts {
			h.Before(func(_ context.Context, req any) error {
				of, write := &high, 0
				if p, ok := req.(interface{ GetLowPriority() bool }); ok && p.GetLowPriority() {
					of = &low
				}
				if _, ok := req.(*wire.PutChunk); ok {
					write = 1
				}
				of[write].Add(1)
				return nil
			})
		}
		startMover(t, c, "n1")
		s.packed(3)
		require.Zero(t, high[0].Load()+high[1].Load(), "to pack")
		require.Positive(t, low[0].Load())
		require.Positive(t, low[1].Load())
		low[0].Store(0)
		low[1].Store(0)
		loseHosts(t, c, 7)
		soundAgain(t, c)
		require.Zero(t, low[0].Load()+low[1].Load(), "to repair")
		require.Positive(t, high[0].Load())
		require.Positive(t, high[1].Load())
	})
}

// TestPackedFilesHeal: hosts with chunks of packed files are lost, one after the other. The
// stripes are rebuilt, and every file reads right.
func TestPackedFilesHeal(t *testing.T) {
	opts := packs
	opts.Hosts = 8
	inCluster(t, opts, func(t *testing.T, c *memcluster.Cluster) {
		s := newSmalls(t, c)
		s.make("/a", 150)
		for _, h := range []string{"n1", "n2", "n3"} {
			startMover(t, c, h)
		}
		s.packed(4)
		loseHosts(t, c, 6, 7)
		s.hold() // degraded
		soundAgain(t, c)
		for _, st := range s.stripes() {
			for _, ch := range st.Chunks {
				require.NotContains(t, []uint32{7, 8}, ch.Device)
			}
		}
		s.hold()
		for n, name := range slices.Sorted(maps.Keys(s.data)) {
			switch n % 5 {
			case 0:
				s.remove(name)
			case 1:
				s.overwrite(name, 10, random(uint64(n), 100))
			}
		}
		s.hold()
	})
}
