// Package locktable has the rules of advisory locks on the ranges of one file: which locks exclude
// each other, and how an owner's new lock replaces its former ones. It is pure: the metadata service
// decides with it, and a client remembers with it what it has.
//
// One path through it: Conflict finds a lock of another owner that a new one would contradict. If
// there is none, Set puts the new lock in place of what its owner has in the range. Clear takes
// away what an owner has in a range.
package locktable

import (
	"cmp"
	"slices"
)

// Max is the end of the longest range. A file has no byte there.
const Max = 1 << 63

// Owner is what has locks. The locks of one owner never exclude each other.
type Owner struct {
	Session uint64 // the client's session
	// Flock says that flock made the lock. Such locks and those of fcntl ignore each other.
	Flock bool
	ID    uint64 // the owner's number in its session
}

// Compare orders owners.
func (o Owner) Compare(p Owner) int {
	if c := cmp.Compare(o.Session, p.Session); c != 0 {
		return c
	}
	if o.Flock != p.Flock {
		if p.Flock {
			return -1
		}
		return 1
	}
	return cmp.Compare(o.ID, p.ID)
}

// Lock is a lock on the bytes from Start on and below End.
type Lock struct {
	Owner
	Start, End uint64
	Write      bool   // excludes all others; false: only those that write
	PID        uint32 // process of the owner, for people
}

// Valid reports whether the range has a byte and ends where a file may end.
func (l Lock) Valid() bool { return l.Start < l.End && l.End <= Max }

// Excludes reports whether the two locks cannot exist at the same time.
func (l Lock) Excludes(o Lock) bool {
	return l.Owner != o.Owner && l.Flock == o.Flock && (l.Write || o.Write) && l.Start < o.End && o.Start < l.End
}

// Table has the locks of one file, by owner and then by start. The ranges of one owner do not
// overlap, and those of one kind do not touch. Nothing changes a Table in place: methods return new
// ones.
type Table []Lock

// Conflict returns the lock with the lowest start that excludes want.
func (t Table) Conflict(want Lock) (found Lock, ok bool) {
	for _, l := range t {
		if l.Excludes(want) && (!ok || l.Start < found.Start) {
			found, ok = l, true
		}
	}
	return found, ok
}

// Set returns the table with l in place of what its owner has in the range. l must be valid. Locks
// of the same kind that touch become one, with the process of l.
func (t Table) Set(l Lock) Table {
	at, end := t.of(l.Owner)
	own := make(Table, 0, end-at+2)
	for _, o := range cut(t[at:end], l.Start, l.End) {
		if o.Write == l.Write && (o.End == l.Start || o.Start == l.End) {
			l.Start, l.End = min(l.Start, o.Start), max(l.End, o.End)
			continue
		}
		own = append(own, o)
	}
	i, _ := slices.BinarySearchFunc(own, l.Start, func(o Lock, start uint64) int { return cmp.Compare(o.Start, start) })
	return slices.Concat(t[:at], slices.Insert(own, i, l), t[end:])
}

// Clear returns the table without what the owner has from start on and below end.
func (t Table) Clear(o Owner, start, end uint64) Table {
	from, to := t.of(o)
	return slices.Concat(t[:from], cut(t[from:to], start, end), t[to:])
}

// ClearOf is Clear for the owners of all sessions that have the number.
func (t Table) ClearOf(flock bool, id, start, end uint64) Table {
	out := t
	for i, l := range t {
		if l.Flock == flock && l.ID == id && (i == 0 || t[i-1].Owner != l.Owner) {
			out = out.Clear(l.Owner, start, end)
		}
	}
	return out
}

// Drop returns the table without the locks of a session.
func (t Table) Drop(session uint64) Table {
	return slices.DeleteFunc(slices.Clone(t), func(l Lock) bool { return l.Session == session })
}

// HasSession reports whether the session has a lock.
func (t Table) HasSession(session uint64) bool {
	return slices.ContainsFunc(t, func(l Lock) bool { return l.Session == session })
}

// Owned returns the owner's locks. The caller must not change them.
func (t Table) Owned(o Owner) Table {
	from, to := t.of(o)
	return t[from:to]
}

// Ordered reports whether the locks are valid and in the form that Set keeps.
func (t Table) Ordered() bool {
	for i, l := range t {
		if !l.Valid() {
			return false
		}
		if i == 0 {
			continue
		}
		switch p := t[i-1]; p.Compare(l.Owner) {
		case 1:
			return false
		case 0:
			if p.End > l.Start || p.End == l.Start && p.Write == l.Write {
				return false
			}
		}
	}
	return true
}

// of returns where the owner's locks are.
func (t Table) of(o Owner) (from, to int) {
	from, _ = slices.BinarySearchFunc(t, o, func(l Lock, o Owner) int { return l.Compare(o) })
	for to = from; to < len(t) && t[to].Owner == o; to++ {
	}
	return from, to
}

// cut returns one owner's locks without what they have from start on and below end.
func cut(own Table, start, end uint64) Table {
	var out Table
	for _, l := range own {
		if l.End <= start || l.Start >= end {
			out = append(out, l)
			continue
		}
		if l.Start < start {
			left := l
			left.End = start
			out = append(out, left)
		}
		if l.End > end {
			right := l
			right.Start = end
			out = append(out, right)
		}
	}
	return out
}
