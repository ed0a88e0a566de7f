package filelocks

import (
	"context"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/session"
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
func (b *Book) enter(ctx context.Context, w who) (place, error) {
	b.mu.Lock()
	p := b.join(w)
	b.mu.Unlock()
	if err := b.turns.Wait(ctx, p.turn); err != nil {
		b.leave(w, p)
		return nil, err
	}
	return p, nil
}

// runInTurn takes the owner's next place at once, and runs fn in the background when its turn comes.
// fn gets an error if the client ends before, and with it the session. It is false if the client was
// closed.
func (b *Book) runInTurn(w who, fn func(ended error)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	p := b.join(w)
	b.work.Go(func() {
		defer b.leave(w, p)
		if p.turn(b.life) != nil {
			fn(session.ErrClosed)
			return
		}
		fn(nil)
	})
	return true
}

// turn waits for the place's turn.
func (p place) turn(ctx context.Context) error {
	select {
	case <-p:
		return nil
	default:
	}
	select {
	case <-p:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// join takes the last place in the line of an owner. The caller holds the mutex.
func (b *Book) join(w who) place {
	p := make(place)
	b.lines[w] = append(b.lines[w], p)
	if len(b.lines[w]) == 1 {
		close(p)
	}
	return p
}

// leave gives up a place, with its turn if that has come.
func (b *Book) leave(w who, p place) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := b.lines[w][0] == p
	line := slices.DeleteFunc(b.lines[w], func(o place) bool { return o == p })
	if len(line) == 0 {
		delete(b.lines, w)
		return
	}
	b.lines[w] = line
	if first {
		close(line[0])
	}
}

// concerns reports whether an owner has locks or calls.
func (b *Book) concerns(w who) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lines[w] != nil || slices.ContainsFunc(b.tables[w.inode], func(l locktable.Lock) bool { return l.ID == w.id && l.Flock == w.flock })
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

// Adopt records a lock that another process of this client's owner took under a session.
func (b *Book) Adopt(inode moraine.InodeID, l Lock, session uint64) { b.set(inode, own(session, l)) }
