package leases_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// The random model: clients change and read a few files and directories, with every
// fault, and every answer is compared with real time.
//
// Each file and directory is a register whose versions are in the order of its
// ctime, which only grows. So an answer is wrong if an operation that ended before
// its request has seen, or made, a later version. A slot is a name to which files
// are renamed, each file once. Its files are in the order of those renames, and a
// removed or replaced one is never seen again.

// event is one operation as its client saw it. start and end are from one counter:
// real time.
type event struct {
	start, end int64
	key        string // of a register or slot
	version    int64  // ctime
	put        bool   // it made this version
	unknown    bool   // it may have taken effect, then or later
	absent     bool   // of a slot: it was empty or, with put, was emptied
	who        string
}

type history struct {
	seq    atomic.Int64
	mu     sync.Mutex
	events []event
}

func (h *history) add(e event) {
	e.end = h.seq.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
}

// check returns the answers that contradict real time.
func (h *history) check() (wrong []string) {
	byKey := map[string][]event{}
	for _, e := range h.events {
		byKey[e.key] = append(byKey[e.key], e)
	}
	for key, es := range byKey {
		slices.SortFunc(es, func(a, b event) int { return cmp.Compare(a.start, b.start) })
		byEnd := slices.Clone(es)
		slices.SortFunc(byEnd, func(a, b event) int { return cmp.Compare(a.end, b.end) })
		next, newest := 0, event{}
		for _, e := range es {
			for ; next < len(byEnd) && byEnd[next].end < e.start; next++ {
				if o := byEnd[next]; !o.unknown && !o.absent && o.version > newest.version {
					newest = o
				}
			}
			if e.unknown {
				continue
			}
			if e.absent && !e.put {
				if why := mayBeAbsent(es, e, newest); why != "" {
					wrong = append(wrong, fmt.Sprintf("%s: %s saw nothing (%d-%d), though %s", key, e.who, e.start, e.end, why))
				}
				continue
			}
			if !e.absent && (e.version < newest.version || e.put && e.version == newest.version) {
				wrong = append(wrong, fmt.Sprintf("%s: %s got version %d (%d-%d) after %s had %d (%d-%d)", key, e.who, e.version,
					e.start, e.end, newest.who, newest.version, newest.start, newest.end))
			}
			if !e.absent && !e.put {
				for _, o := range es {
					if o.absent && o.put && !o.unknown && o.end < e.start && o.version >= e.version {
						wrong = append(wrong, fmt.Sprintf("%s: %s saw version %d (%d-%d), which was removed (%d-%d)", key, e.who, e.version, e.start, e.end, o.start, o.end))
					}
				}
			}
		}
	}
	return wrong
}

// mayBeAbsent says why a slot could not have been empty; "" if it could.
func mayBeAbsent(es []event, e, newest event) string {
	if newest.version == 0 {
		return ""
	}
	for _, o := range es {
		if o.absent && o.put && o.start < e.end && (o.unknown || o.version >= newest.version) {
			return ""
		}
	}
	return fmt.Sprintf("%s had version %d (%d-%d)", newest.who, newest.version, newest.start, newest.end)
}

const (
	modelFiles = 3
	modelDirs  = 3
	modelSlots = 2
)

// user is one working client.
type user struct {
	name  string
	h     *history
	cl    *client.Client
	rng   *rand.Rand
	dirs  []moraine.InodeID
	files []moraine.InodeID
	made  int
}

func (u *user) step(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 8*time.Second)
	defer cancel()
	dir, slot := u.rng.IntN(modelDirs), fmt.Sprintf("slot%d", u.rng.IntN(modelSlots))
	file := u.rng.IntN(modelFiles)
	switch n := u.rng.IntN(100); {
	case n < 8:
		u.write(ctx, file)
	case n < 14:
		u.putSlot(ctx, dir, slot)
	case n < 18:
		u.emptySlot(ctx, dir, slot)
	case n < 21:
		u.link(ctx, file)
	case n < 40:
		e := u.begin(fmt.Sprint("file", file))
		a, err := u.cl.Inodes().Stat(ctx, u.files[file])
		u.saw(e, a, err)
	case n < 55:
		e := u.begin(fmt.Sprint("file", file))
		a, err := u.cl.Stat(ctx, fmt.Sprintf("d0/file%d", file))
		u.saw(e, a, err)
	case n < 70:
		e := u.begin(fmt.Sprint(dir, slot))
		a, err := u.cl.Inodes().Lookup(ctx, u.dirs[dir], slot)
		u.saw(e, a, err)
	case n < 80:
		e := u.begin(fmt.Sprint(dir, slot))
		a, err := u.cl.Stat(ctx, fmt.Sprintf("d%d/%s", dir, slot))
		u.saw(e, a, err)
	case n < 88:
		e := u.begin(fmt.Sprint("dir", dir))
		a, err := u.cl.Inodes().Stat(ctx, u.dirs[dir])
		u.saw(e, a, err)
	default:
		u.list(ctx, dir)
	}
}

func (u *user) begin(key string) event { return event{key: key, who: u.name, start: u.h.seq.Add(1)} }

// saw records the result of a read of a register or slot.
func (u *user) saw(e event, a client.Attr, err error) {
	switch {
	case err == nil:
		e.version = a.ChangeTime().UnixNano()
		u.h.add(e)
	case moraine.KindOf(err) == moraine.NotFound:
		e.absent = true
		u.h.add(e)
	}
}

func (u *user) write(ctx context.Context, file int) {
	e := u.begin(fmt.Sprint("file", file))
	e.put = true
	a, err := u.cl.Inodes().SetAttr(ctx, u.files[file], client.SetAttr{Mode: new(u.rng.Uint32() & 0o777)})
	e.version, e.unknown = a.ChangeTime().UnixNano(), err != nil
	u.h.add(e)
}

// putSlot makes a file elsewhere and renames it to the slot, in place of an
// existing one.
func (u *user) putSlot(ctx context.Context, dir int, slot string) {
	u.made++
	from := client.Entry{Parent: u.cl.Root(), Name: fmt.Sprint(u.name, u.made)}
	made, err := u.cl.Inodes().Create(ctx, from.Parent, from.Name, client.NodeOptions{Mode: 0o600, Exclusive: true})
	if err != nil {
		return
	}
	e, d := u.begin(fmt.Sprint(dir, slot)), u.begin(fmt.Sprint("dir", dir))
	e.put = true
	err = u.cl.Inodes().Rename(ctx, from, client.Entry{Parent: u.dirs[dir], Name: slot}, client.RenameOptions{})
	if err != nil {
		return // a reader of it does not know when: versions only grow
	}
	// Its version is the service's timestamp; it does not change while the file is
	// there.
	a, err := u.cl.Inodes().Stat(ctx, made.Inode())
	if err != nil || uint64(a.Parent()) != uint64(u.dirs[dir]) {
		return
	}
	e.version = a.ChangeTime().UnixNano()
	u.h.add(e)
	d.version = a.ChangeTime().UnixNano() // the directory changed with it
	u.h.add(d)
}

func (u *user) emptySlot(ctx context.Context, dir int, slot string) {
	e := u.begin(fmt.Sprint(dir, slot))
	e.put, e.absent = true, true
	a, err := u.cl.Inodes().Lookup(ctx, u.dirs[dir], slot)
	if err != nil {
		return
	}
	inode, err := u.cl.Inodes().Remove(ctx, u.dirs[dir], slot, client.RemoveOptions{})
	switch {
	case moraine.KindOf(err) == moraine.NotFound:
		return
	case err != nil || uint64(inode) != uint64(a.Inode()): // it was another one by then
		e.unknown = true
	default:
		e.version = a.ChangeTime().UnixNano()
	}
	u.h.add(e)
}

// link gives a file a second name, or removes it.
func (u *user) link(ctx context.Context, file int) {
	e := u.begin(fmt.Sprint("file", file))
	e.put = true
	name := fmt.Sprint("link", file)
	a, err := u.cl.Inodes().Link(ctx, u.files[file], u.dirs[1], name)
	switch moraine.KindOf(err) {
	case moraine.Exists:
		_, err = u.cl.Inodes().Remove(ctx, u.dirs[1], name, client.RemoveOptions{})
		if err == nil || moraine.KindOf(err) == moraine.NotFound {
			return
		}
	default:
		if err == nil {
			e.version = a.ChangeTime().UnixNano()
			u.h.add(e)
			return
		}
	}
	e.unknown = true
	u.h.add(e)
}

func (u *user) list(ctx context.Context, dir int) {
	start := u.h.seq.Add(1)
	found := map[string]client.Attr{}
	for e, err := range u.cl.Inodes().ReadDir(ctx, u.dirs[dir]) {
		if err != nil {
			return
		}
		found[e.Name] = e.Attr
	}
	for s := range modelSlots {
		slot := fmt.Sprintf("slot%d", s)
		e := event{key: fmt.Sprint(dir, slot), who: u.name + " listing", start: start}
		if a, ok := found[slot]; ok {
			e.version = a.ChangeTime().UnixNano()
		} else {
			e.absent = true
		}
		u.h.add(e)
	}
	for f := range modelFiles {
		if a, ok := found[fmt.Sprint("file", f)]; ok {
			u.h.add(event{key: fmt.Sprint("file", f), version: a.ChangeTime().UnixNano(), who: u.name + " listing", start: start})
		}
	}
}

// work is what each client does on a tree of dirs. File i is in directory in(i).
type work struct {
	dirs, files int
	in          func(file int) int
	do          func(ctx context.Context, u *user)
}

// stepsOf is the work of many steps on few directories and files.
func stepsOf(steps int) work {
	return work{modelDirs, modelFiles, func(int) int { return 0 }, func(ctx context.Context, u *user) {
		for range steps {
			u.step(ctx)
			time.Sleep(time.Duration(u.rng.IntN(8)) * time.Millisecond)
		}
	}}
}

// run has clients work for a while under faults and returns the contradictions.
// wrap may falsify what the first client sends to the service.
func run(t *testing.T, seed uint64, w work, wrap func(transport.Dialer) transport.Dialer) (wrong []string, hits uint64) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Hour)
		defer cancel()
		c, err := incluster.Start(ctx, incluster.Options{Seed: seed, Chunkservers: 1})
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Stop()) }()
		require.NoError(t, c.WaitReady(ctx))
		rng := rand.New(rand.NewPCG(seed, 7))
		h := &history{}
		dirs, files := modelTree(t, ctx, c, w)
		var users []*user
		for i := range 4 {
			cfg, over := cached, wrap
			if i == 3 {
				cfg.CacheEntries = -1 // one without a cache
			}
			if i > 0 {
				over = nil
			}
			name := fmt.Sprint("u", i)
			cl, err := c.ClientOver(ctx, name, cfg, over)
			require.NoError(t, err)
			defer cl.Close()
			users = append(users, &user{name: name, h: h, cl: cl.Client, dirs: dirs, files: files, rng: rand.New(rand.NewPCG(seed, uint64(i)))})
		}
		var wg sync.WaitGroup
		for _, u := range users {
			wg.Go(func() { w.do(ctx, u) })
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		faults(ctx, c, rng, done)
		for _, u := range users {
			hits += u.cl.Stats().CacheHits
		}
		wrong = h.check()
	})
	return wrong, hits
}

func modelTree(t *testing.T, ctx context.Context, c *incluster.Cluster, w work) (dirs, files []moraine.InodeID) {
	cl, err := c.ClientWith(ctx, "setup", client.Config{})
	require.NoError(t, err)
	defer cl.Close()
	for i := range w.dirs {
		a, err := cl.Mkdir(ctx, fmt.Sprint("d", i), 0)
		require.NoError(t, err)
		dirs = append(dirs, a.Inode())
	}
	for i := range w.files {
		a, err := cl.Inodes().Create(ctx, dirs[w.in(i)], fmt.Sprint("file", i), client.NodeOptions{Mode: 0o600})
		require.NoError(t, err)
		files = append(files, a.Inode())
	}
	return dirs, files
}

var (
	calm  = memnet.Faults{MaxDelay: 2 * time.Millisecond}
	lossy = memnet.Faults{MaxDelay: 100 * time.Millisecond, LoseRequest: 0.1, LoseReply: 0.1}
)

// faults injects faults until done is closed, and then ends them.
func faults(ctx context.Context, c *incluster.Cluster, rng *rand.Rand, done <-chan struct{}) {
	pause := func(d time.Duration) bool {
		select {
		case <-done:
			return false
		case <-time.After(d):
			return true
		}
	}
	for pause(time.Duration(200+rng.IntN(1500)) * time.Millisecond) {
		who := fmt.Sprint("u", rng.IntN(4))
		switch rng.IntN(6) {
		case 0: // a client sleeps, perhaps past its leases
			c.Net.Isolate(who)
			pause(time.Duration(rng.IntN(5000)) * time.Millisecond)
			c.Net.Rejoin(who, "*")
		case 1: // its messages arrive, and it receives none; or the other way around
			a, b := who, "*"
			if rng.IntN(2) == 0 {
				a, b = b, a
			}
			c.Net.Cut(a, b)
			pause(time.Duration(rng.IntN(3000)) * time.Millisecond)
			c.Net.Rejoin(who, "*")
		case 2, 3: // messages are lost and late
			f := lossy
			c.Net.SetFaults(who, "*", f)
			c.Net.SetFaults("*", who, f)
			pause(time.Duration(rng.IntN(3000)) * time.Millisecond)
			c.Net.SetFaults(who, "*", calm)
			c.Net.SetFaults("*", who, calm)
		case 4:
			if leader := c.Leader(); leader != "" {
				c.Kill(leader)
				pause(time.Duration(rng.IntN(2000)) * time.Millisecond)
				if err := c.Restart(leader); err != nil {
					panic(err)
				}
			}
		case 5: // a leader that does not know that it is deposed
			if leader := c.Leader(); leader != "" {
				for _, other := range []string{"m1", "m2", "m3"} {
					if other != leader {
						c.Net.Partition(leader, other)
					}
				}
				pause(time.Duration(rng.IntN(4000)) * time.Millisecond)
				c.Net.Rejoin(leader, "*")
			}
		}
	}
}

func TestCachedAnswersAreLinearizable(t *testing.T) {
	first, n, steps := testseed.First(t), testseed.Runs(t, 1, 100), testseed.Of(300, 1500)
	var all uint64
	for i := range uint64(n) {
		seed := first + i
		wrong, hits := run(t, seed, stepsOf(steps), nil)
		require.Empty(t, wrong, "MORAINE_TEST_SEED=%d", seed)
		all += hits
		if n > 10 {
			t.Logf("seed %d: %d answers from caches", seed, hits)
		}
	}
	t.Logf("seeds %d to %d, %d answers from caches", first, first+uint64(n)-1, all)
	require.Positive(t, all)
}

// A client that acknowledges recalls before it has carried them out is like a
// leader that does not wait for its holders: the model must detect it. Only the long
// form runs it.
func TestTheModelCatchesALeaderThatDoesNotWait(t *testing.T) {
	testseed.OnlyLong(t)
	early := func(d transport.Dialer) transport.Dialer {
		return incluster.Through(d, func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
			resp, err := m.Do(ctx, req)
			if l := resp.GetLeases(); err == nil && len(l.GetRecalls()) > 0 {
				ack := &wire.MetaRequest{Session: req.Session, Op: &wire.MetaRequest_Leases{Leases: &wire.Leases{
					Epoch: req.GetLeases().Epoch, Ack: l.Recalls[len(l.Recalls)-1].Number}}}
				if _, err := m.Do(ctx, ack); err != nil {
					return nil, err
				}
				time.Sleep(30 * time.Millisecond)
			}
			return resp, err
		})
	}
	for seed := uint64(1); seed <= 10; seed++ {
		if wrong, _ := run(t, seed, stepsOf(400), early); len(wrong) > 0 {
			t.Logf("seed %d: %d answers are wrong, the first: %s", seed, len(wrong), wrong[0])
			return
		}
	}
	t.Fatal("no wrong answer was seen")
}
