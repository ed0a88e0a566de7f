package client

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/session"
)

// Loans lends names and attributes to the kernel of a mount. Until a loan is over the kernel may
// answer what was lent by itself, and the client lets no other client change it. A loan takes
// half a second. Its methods may be called concurrently.
type Loans struct{ b *session.Borrower }

// Loans begins loans to a mount. forget makes the mount's kernel forget the attributes of an
// inode, and returns false if the kernel does not know the inode. It must not call the Client.
func (n Inodes) Loans(forget func(moraine.InodeID) bool) Loans {
	return Loans{n.c.meta.Borrow(forget)}
}

// Entry returns for how long the kernel may answer an entry, and its attributes. It is 0 for what
// must not be lent now. The zero Attr means that there is no such entry; other attributes must be
// those that a method of Inodes returned.
func (l Loans) Entry(dir moraine.InodeID, name string, a Attr) (entry, attr time.Duration) {
	return l.b.Lend(dir, name, a.w)
}

// Attr is Entry for attributes alone.
func (l Loans) Attr(a Attr) time.Duration { return l.b.LendAttr(a.w) }

// Context marks the requests for calls of the mount's kernel. It forgets the names that it changes
// itself. Other changes by the same Client wait until the loan of a name is over.
func (l Loans) Context(ctx context.Context) context.Context { return l.b.Context(ctx) }

// AwaitEnd returns when every loan made so far is over, half a second later at most. A call that has
// changed something and fails waits for that: the kernel keeps what it was lent.
func (l Loans) AwaitEnd() { l.b.AwaitEnd() }

// End ends the loans to a mount that is no longer attached.
func (l Loans) End() { l.b.End() }
