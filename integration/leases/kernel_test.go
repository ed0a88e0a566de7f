package leases_test

import (
	"context"
	"fmt"
	"math/rand/v2"
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

// kernel is a kernel to which a client lends. It answers what it was lent by itself, until the time
// that it was given is over. That time begins when it processes the answer, which may be late.
type kernel struct {
	cl    *client.Client
	loans client.Loans
	own   *atomic.Int64 // counts the answers without a request

	mu      sync.Mutex
	rng     *rand.Rand
	names   map[client.Entry]lent
	attrs   map[moraine.InodeID]lent
	version int // grows when attributes are forgotten
	since   map[moraine.InodeID]int
}

// lent is an inode, 0 for a missing name, or its attributes.
type lent struct {
	inode moraine.InodeID
	attr  client.Attr
	until time.Time
}

func newKernel(cl *client.Client, seed uint64, own *atomic.Int64) *kernel {
	k := &kernel{cl: cl, own: own, rng: rand.New(rand.NewPCG(seed, 11)), names: map[client.Entry]lent{}, attrs: map[moraine.InodeID]lent{},
		since: map[moraine.InodeID]int{}}
	k.loans = cl.Inodes().Loans(k.forget)
	return k
}

// forget does what Linux does at FUSE_NOTIFY_INVAL_INODE: answers to earlier requests do not bring
// the attributes back.
func (k *kernel) forget(inode moraine.InodeID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.version++
	_, known := k.since[inode]
	if known {
		k.since[inode] = k.version
	}
	delete(k.attrs, inode)
	return known
}

// late is the way of an answer to the kernel. It takes less than the rest of the loan.
func (k *kernel) late() {
	k.mu.Lock()
	d := time.Duration(k.rng.IntN(240)) * time.Millisecond
	often := k.rng.IntN(4) > 0
	k.mu.Unlock()
	if !often {
		time.Sleep(d)
	}
}

// lookup is Inodes.Lookup by way of the kernel.
func (k *kernel) lookup(ctx context.Context, dir moraine.InodeID, name string) (client.Attr, error) {
	e := client.Entry{Parent: dir, Name: name}
	k.mu.Lock()
	l, version := k.names[e], k.version
	a := k.attrs[l.inode]
	now := time.Now()
	if now.Before(l.until) && (l.inode == 0 || now.Before(a.until)) {
		k.own.Add(1)
		k.mu.Unlock()
		if l.inode == 0 {
			return client.Attr{}, &moraine.Error{Op: "kernel", Kind: moraine.NotFound}
		}
		return a.attr, nil
	}
	k.mu.Unlock()
	a.attr, a.inode = client.Attr{}, 0
	attr, err := k.cl.Inodes().Lookup(ctx, dir, name)
	if err != nil && moraine.KindOf(err) != moraine.NotFound {
		return attr, err
	}
	name1, attr1 := k.loans.Entry(dir, name, attr)
	k.late()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.names[e] = lent{inode: attr.Inode(), until: time.Now().Add(name1)}
	k.keep(attr, attr1, version)
	return attr, err
}

// stat is Inodes.Stat by way of the kernel.
func (k *kernel) stat(ctx context.Context, inode moraine.InodeID) (client.Attr, error) {
	k.mu.Lock()
	a, version := k.attrs[inode], k.version
	if time.Now().Before(a.until) {
		k.own.Add(1)
		k.mu.Unlock()
		return a.attr, nil
	}
	k.mu.Unlock()
	attr, err := k.cl.Inodes().Stat(ctx, inode)
	if err != nil {
		return attr, err
	}
	d := k.loans.Attr(attr)
	k.late()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keep(attr, d, version)
	return attr, nil
}

// keep stores attributes unless they were forgotten since the request.
func (k *kernel) keep(attr client.Attr, d time.Duration, version int) {
	if attr.Inode() == 0 || k.since[attr.Inode()] > version {
		return
	}
	if _, known := k.since[attr.Inode()]; !known {
		k.since[attr.Inode()] = 0
	}
	k.attrs[attr.Inode()] = lent{inode: attr.Inode(), attr: attr, until: time.Now().Add(d)}
}

// rounds is work on one directory after the other. All clients read and change the same one at the
// same time. It did not change before, so it is lent.
func rounds(n int, own *atomic.Int64) work {
	return work{n, n, func(file int) int { return file }, func(ctx context.Context, u *user) {
		k := newKernel(u.cl, u.rng.Uint64(), own)
		defer k.loans.End()
		began := time.Now()
		for dir := range n {
			time.Sleep(time.Until(began.Add(time.Duration(dir) * time.Second)))
			for range 20 {
				u.look(ctx, k, dir)
				time.Sleep(time.Duration(u.rng.IntN(50)) * time.Millisecond)
			}
		}
	}}
}

// look reads a directory, its file or its slot by way of the kernel, and sometimes changes it.
func (u *user) look(ctx context.Context, k *kernel, dir int) {
	ctx, cancel := context.WithTimeout(ctx, 8*time.Second)
	defer cancel()
	switch n := u.rng.IntN(80); {
	case n < 2:
		u.write(ctx, dir)
	case n < 4:
		u.putSlot(ctx, dir, "slot0")
	case n < 5:
		u.emptySlot(ctx, dir, "slot0")
	case n < 30:
		e := u.begin(fmt.Sprint("file", dir))
		a, err := k.stat(ctx, u.files[dir])
		u.saw(e, a, err)
	case n < 65:
		e := u.begin(fmt.Sprint(dir, "slot0"))
		a, err := k.lookup(ctx, u.dirs[dir], "slot0")
		u.saw(e, a, err)
	default:
		e := u.begin(fmt.Sprint("dir", dir))
		a, err := k.stat(ctx, u.dirs[dir])
		u.saw(e, a, err)
	}
}

// What kernels answer by themselves is as exact as what clients answer from their caches.
func TestLentNamesAreLinearizable(t *testing.T) {
	first, n, many := testseed.First(t), testseed.Runs(t, 3, 60), testseed.Of(60, 200)
	var own atomic.Int64
	for seed := first; seed < first+uint64(n); seed++ {
		wrong, _ := run(t, seed, rounds(many, &own), nil)
		require.Empty(t, wrong, "MORAINE_TEST_SEED=%d", seed)
	}
	t.Logf("seeds %d to %d, %d answers of kernels", first, first+uint64(n)-1, own.Load())
	require.Positive(t, own.Load())
}

// dropped acknowledges recalls once the client has carried them out, but before its loans are over.
func dropped(d transport.Dialer) transport.Dialer {
	return incluster.Through(d, func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		resp, err := m.Do(ctx, req)
		if l := resp.GetLeases(); err == nil && len(l.GetRecalls()) > 0 {
			ack := &wire.MetaRequest{Session: req.Session, Op: &wire.MetaRequest_Leases{Leases: &wire.Leases{
				Epoch: req.GetLeases().Epoch, Ack: l.Recalls[len(l.Recalls)-1].Number}}}
			go func() {
				time.Sleep(5 * time.Millisecond)
				_, _ = m.Do(context.WithoutCancel(ctx), ack) // if it is lost, the client's own one follows
			}()
		}
		return resp, err
	})
}

// The model finds a client that acknowledges a recall before its loans are over.
func TestTheModelCatchesALoanThatIsNotWaitedFor(t *testing.T) {
	var own atomic.Int64
	for seed := uint64(1); seed <= 60; seed++ {
		if wrong, _ := run(t, seed, rounds(60, &own), dropped); len(wrong) > 0 {
			t.Logf("seed %d: %d answers are wrong, the first: %s", seed, len(wrong), wrong[0])
			return
		}
	}
	t.Fatal("no wrong answer was seen")
}
