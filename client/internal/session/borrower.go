package session

import (
	"context"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// Borrower is a mount to whose kernel the client lends. Its methods may be called concurrently.
type Borrower struct {
	c *cache
	// forget makes the kernel forget the attributes of an inode. It returns false if the kernel
	// does not know the inode.
	forget func(moraine.InodeID) bool
	ended  bool // nothing is lent any more
}

// Borrow begins loans to a mount. forget must not call the Conn.
func (m *Conn) Borrow(forget func(moraine.InodeID) bool) *Borrower {
	return &Borrower{c: m.cache, forget: forget}
}

// End ends the loans. What was lent stays so until its time is over.
func (b *Borrower) End() {
	if c := b.c; c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		b.ended = true
	}
}

// AwaitEnd waits until every loan made so far is over.
func (b *Borrower) AwaitEnd() {
	if b.c != nil {
		b.c.loans.awaitAll(context.Background())
	}
}

type borrowerKey struct{}

// Context marks the requests of the mount's own kernel. The kernel itself forgets the names that
// it changes.
func (b *Borrower) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, borrowerKey{}, b)
}

// Lend returns for how long the kernel may answer an entry and its attributes by itself. nil: the
// entry does not exist. 0: the kernel must not. The attributes must be those that the Conn
// returned.
func (b *Borrower) Lend(dir moraine.InodeID, name string, a *wire.Attr) (entry, attr time.Duration) {
	c := b.c
	if c == nil {
		return 0, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now, ok := b.lends()
	if !ok {
		return 0, 0
	}
	if inode, known := c.find(uint64(dir), name); known && inode == a.GetInode() && b.lend(uint64(dir), now) {
		entry = kernelTime
	}
	return entry, b.lendAttr(a, now)
}

// LendAttr is Lend of the attributes alone.
func (b *Borrower) LendAttr(a *wire.Attr) time.Duration {
	c := b.c
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now, ok := b.lends()
	if !ok {
		return 0
	}
	return b.lendAttr(a, now)
}

// lends, lendAttr and lend need the mutex of the cache. lends reports whether a loan that begins now ends while the leases are trusted.
func (b *Borrower) lends() (now time.Time, ok bool) {
	c := b.c
	if b.ended || !c.usableFor(loanTime) {
		return now, false
	}
	now = c.clock.Now()
	return now, !c.loans.withheld(now)
}

func (b *Borrower) lendAttr(a *wire.Attr, now time.Time) time.Duration {
	if a == nil || b.c.get(a.Inode) != a || !b.lend(b.c.attrs[a.Inode].under.id, now) {
		return 0
	}
	return kernelTime
}

func (b *Borrower) lend(lease uint64, now time.Time) bool {
	c := b.c
	l := c.loans.record(lease, now, c.limit)
	if l == nil || now.Before(l.from) {
		return false
	}
	if !now.Before(l.end) {
		l.by = l.by[:0]
	}
	if !slices.Contains(l.by, b) {
		l.by = append(l.by, b)
	}
	l.end = now.Add(loanTime)
	c.loans.last = l.end
	c.metrics.Loans.Inc()
	return true
}
