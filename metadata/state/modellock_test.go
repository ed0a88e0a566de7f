package state_test

import (
	"slices"

	"github.com/morainefs/moraine/internal/locktable"
	"github.com/morainefs/moraine/transport/wire"
)

// lockBytes is how many bytes of a file the model locks.
const lockBytes = 16

// modelLocks is what the owners have on each byte of one file: 0: nothing, 1: read, 2: write.
type modelLocks map[modelOwner]*[lockBytes]byte

type modelOwner struct {
	c     *client
	id    uint64
	flock bool
}

// stepLock takes or gives back a lock, and compares the answer with the bytes of the model.
func (m *model) stepLock(c *client) {
	n := m.pickLocked(c)
	own := modelOwner{c: c, id: m.lockDice.Uint64N(2), flock: m.lockDice.IntN(4) == 0}
	start := m.lockDice.Uint64N(lockBytes)
	end := start + 1 + m.lockDice.Uint64N(lockBytes-start)
	write, unlock := m.lockDice.IntN(2) == 0, m.lockDice.IntN(3) == 0
	resp := m.replicate(c, c.request(&wire.MetaRequest{Op: &wire.MetaRequest_SetLock{SetLock: &wire.SetLock{Inode: n.id, Unlock: unlock,
		Lock: &wire.FileLock{Owner: own.id, Flock: own.flock, Start: start, End: end, Write: write, Pid: 7}}}}))
	m.expect(resp, "ok", "lock")
	if n.locks == nil {
		n.locks = modelLocks{}
	}
	kind := byte(1)
	switch {
	case unlock:
		kind = 0
	case write:
		kind = 2
	}
	by := resp.GetLock().GetConflict()
	if held := !unlock && m.excluded(n, own, start, end, write); held != (by != nil) {
		m.t.Fatalf("lock of %d-%d of inode %x (write %t, flock %t): excluded %t, want %t: %v", start, end, n.id, write, own.flock, by != nil, held, by)
	}
	if by != nil {
		return
	}
	if n.locks[own] == nil {
		n.locks[own] = &[lockBytes]byte{}
	}
	for i := start; i < end; i++ {
		n.locks[own][i] = kind
	}
}

// pickLocked prefers a file with locks.
func (m *model) pickLocked(c *client) *modelNode {
	var have []*modelNode
	for _, n := range m.nodes {
		if len(n.locks) > 0 && (n.owner == nil || n.owner == c) {
			have = append(have, n)
		}
	}
	if len(have) > 0 && m.lockDice.IntN(4) > 0 {
		return have[m.lockDice.IntN(len(have))]
	}
	for {
		if n := m.nodes[m.lockDice.IntN(len(m.nodes))]; n.owner == nil || n.owner == c {
			return n
		}
	}
}

// excluded reports whether another owner, whose session lives, prevents a lock.
func (m *model) excluded(n *modelNode, own modelOwner, start, end uint64, write bool) bool {
	for o, has := range n.locks {
		if o == own || o.flock != own.flock || !slices.Contains(m.clients, o.c) {
			continue
		}
		for i := start; i < end; i++ {
			if has[i] == 2 || has[i] == 1 && write {
				return true
			}
		}
	}
	return false
}

// compareLocks compares the locks of live sessions on a node with the state.
func (m *model) compareLocks(c *client, n *modelNode) {
	m.t.Helper()
	for _, flock := range []bool{false, true} {
		for i := range uint64(lockBytes) {
			get := &wire.GetLock{Inode: n.id, Lock: &wire.FileLock{Session: c.id, Owner: 99, Flock: flock, Write: true, Start: i, End: i + 1}}
			resp := m.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetLock{GetLock: get}}))
			by := resp.GetLock().GetConflict()
			if want := m.excluded(n, modelOwner{c: c, id: 99, flock: flock}, i, i+1, true); want != (by != nil) {
				m.t.Fatalf("byte %d of inode %x (flock %t): locked %t, want %t", i, n.id, flock, by != nil, want)
			}
			if by != nil && (by.GetFlock() != flock || by.GetStart() > i || by.GetEnd() <= i || by.GetEnd() > locktable.Max) {
				m.t.Fatalf("byte %d of inode %x: the lock is %v", i, n.id, by)
			}
		}
	}
}
