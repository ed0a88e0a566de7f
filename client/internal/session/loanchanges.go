package session

import (
	"context"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// The service does not recall a client's own changes. A kernel to which the client has lent what
// such a change touches must forget it otherwise: names before the change is sent, attributes
// before its caller gets the answer.

// entriesIn returns the directories whose entries a request changes.
func entriesIn(req *wire.MetaRequest) []uint64 {
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_Create:
		return []uint64{op.Create.GetParent()}
	case *wire.MetaRequest_Rename:
		return []uint64{op.Rename.GetParent(), op.Rename.GetNewParent()}
	case *wire.MetaRequest_Remove:
		return []uint64{op.Remove.GetParent()}
	case *wire.MetaRequest_RemoveTree:
		return []uint64{op.RemoveTree.GetParent()}
	case *wire.MetaRequest_Link:
		return []uint64{op.Link.GetParent()}
	case *wire.MetaRequest_Commit:
		if parent := op.Commit.GetLink().GetParent(); parent != 0 {
			return []uint64{parent}
		}
	}
	return nil
}

// before waits until no kernel may answer the entries that a request changes. The kernel whose
// call it is changes them itself. But it moves a name to another directory with the rest of its
// time, which no lease of that directory covers. The caller has put the directories aside, so
// that nothing is lent meanwhile.
func (s *loans) before(ctx context.Context, req *wire.MetaRequest) {
	by, _ := ctx.Value(borrowerKey{}).(*Borrower)
	dirs := entriesIn(req)
	moves := len(dirs) == 2 && dirs[0] != dirs[1]
	waited := s.awaitTime(context.WithoutCancel(ctx), func() (until time.Time) {
		for _, dir := range dirs {
			l := s.of[dir]
			if l == nil || !moves && by != nil && len(l.by) == 1 && l.by[0] == by {
				continue
			}
			if until.Before(l.end) {
				until = l.end
			}
			if now := s.clock.Now(); now.Before(l.end) {
				l.stop(now)
			}
		}
		return until
	})
	if waited {
		s.metrics.LoanWaits.Inc()
	}
}

// owed is what the kernels must forget because of a change by this client.
type owed struct {
	inodes []uint64
	users  []*Borrower
	until  time.Time // when the loans are over
}

// owes returns what a change owes. known says that touches is all that it touched.
func (s *loans) owes(touches []*wire.Touch, known bool, now time.Time) (o owed) {
	if !known {
		o.until = s.last
		return o
	}
	for _, t := range touches {
		if t.Name != "" || !s.lent(t.Lease, now) || slices.Contains(o.inodes, t.Inode) {
			continue
		}
		o.inodes = append(o.inodes, t.Inode)
		l := s.of[t.Lease]
		if o.until.Before(l.end) {
			o.until = l.end
		}
		for _, b := range l.by {
			if !slices.Contains(o.users, b) {
				o.users = append(o.users, b)
			}
		}
	}
	return o
}

// settle has the kernels forget what a change owes. If a kernel does not know an inode, an answer
// with its attributes may be on the way. Then settle waits until the loan is over. The kernel
// whose call it is knows what it changes.
func (s *loans) settle(ctx context.Context, o owed) {
	by, _ := ctx.Value(borrowerKey{}).(*Borrower)
	forgotten := len(o.inodes) > 0
	for _, b := range o.users {
		for _, inode := range o.inodes {
			if !b.forget(moraine.InodeID(inode)) && b != by {
				forgotten = false
			}
		}
	}
	if !forgotten && s.awaitTime(context.WithoutCancel(ctx), func() time.Time { return o.until }) {
		s.metrics.LoanWaits.Inc()
	}
}
