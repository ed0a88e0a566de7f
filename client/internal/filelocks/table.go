package filelocks

import (
	"context"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/locktable"
)

// run runs a command in the background; false if the client was closed.
func (b *Book) run(fn func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.work.Go(fn)
	return true
}

// enter takes the turn of an owner. The caller ends it with leave.
func (b *Book) enter(ctx context.Context, w who) (*owner, error) {
	b.mu.Lock()
	o := b.owners[w]
	if o == nil {
		o = &owner{turn: make(chan struct{}, 1)}
		b.owners[w] = o
	}
	o.users++
	b.mu.Unlock()
	if err := b.turns.Enter(ctx, o.turn); err != nil {
		b.forget(w, o)
		return nil, err
	}
	return o, nil
}

// enterAtLast is enter for work in the background, which nobody waits for.
func (b *Book) enterAtLast(w who) (*owner, error) {
	for {
		o, err := b.enter(b.life, w)
		if err == nil || b.life.Err() != nil {
			return o, err
		}
	}
}

func (b *Book) leave(w who, o *owner) {
	<-o.turn
	b.forget(w, o)
}

func (b *Book) forget(w who, o *owner) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o.users--; o.users == 0 {
		delete(b.owners, w)
	}
}

// concerns reports whether an owner has locks or calls.
func (b *Book) concerns(w who) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.owners[w] != nil || slices.ContainsFunc(b.tables[w.inode], func(l locktable.Lock) bool { return l.ID == w.id && l.Flock == w.flock })
}

// set records a lock that the service gave.
func (b *Book) set(inode moraine.InodeID, l locktable.Lock) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replace(inode, b.tables[inode].Set(l))
}

// clear forgets an owner's locks in a range, of every session.
func (b *Book) clear(inode moraine.InodeID, l Lock) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replace(inode, b.tables[inode].ClearOf(l.Flock, l.Owner, l.Start, l.End))
}

// holds reports whether the owner of l has a lock in its range, under its session.
func (b *Book) holds(inode moraine.InodeID, l locktable.Lock) bool {
	return slices.ContainsFunc(b.owned(inode, l.Owner), func(h locktable.Lock) bool { return h.Start < l.End && l.Start < h.End })
}

// owned returns what an owner has under a session.
func (b *Book) owned(inode moraine.InodeID, o locktable.Owner) locktable.Table {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tables[inode].Owned(o)
}

// replace replaces an inode's table. The caller holds the mutex.
func (b *Book) replace(inode moraine.InodeID, table locktable.Table) {
	if len(table) == 0 {
		delete(b.tables, inode)
	} else {
		b.tables[inode] = table
	}
	b.locked.Store(int64(len(b.tables)))
}

// Any reports whether this client has, or lost, a lock on the inode.
func (b *Book) Any(inode moraine.InodeID) bool {
	if b.locked.Load() == 0 {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.tables[inode]) > 0
}

// Check fails with IOError if a lock on the inode was lost, as seen from a session that is to change
// the file. It costs little while the client has no locks.
func (b *Book) Check(inode moraine.InodeID, session uint64) error {
	if b.locked.Load() == 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.ContainsFunc(b.tables[inode], func(l locktable.Lock) bool { return l.Session != session }) {
		return b.LostError(inode)
	}
	return nil
}

// LostError is the error of a call that a lost lock no longer protects.
func (b *Book) LostError(inode moraine.InodeID) error {
	return &moraine.Error{Op: "lock", Ref: inode.String(), Kind: moraine.IOError, Err: ErrLost}
}

// lost reports whether one of the locks was of a session that has ended.
func (b *Book) lost(inode moraine.InodeID, which func(locktable.Lock) bool) bool {
	now := b.meta.Current().Id
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.tables[inode], func(l locktable.Lock) bool { return l.Session != now && which(l) })
}
