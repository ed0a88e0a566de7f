package fuse

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/fuse/handover"
	"github.com/morainefs/moraine/internal/limit"
	"golang.org/x/sync/errgroup"
)

// file is one open file of an application.
type file struct {
	state  *openInode
	handle *client.Handle
	// writes is set if it was opened for writing.
	writes bool
	// paged is not nil if reads, or mappings, fill pages of the kernel that leases cover.
	paged      *pagedInode
	direct     bool   // reads go past the pages: only mappings fill them
	pagedIn    uint64 // the epoch of paged at the open
	prefetched bool   // it counts as a user of a prefetch
	number     uint64 // its handle
	place      handover.Place
	// fault says that the mount's daemon died before written bytes were committed.
	fault atomic.Bool
	// unlocking are the closes whose locks are not given back yet.
	unlocking sync.WaitGroup

	// ending orders its close and the end of the mount, which commits all files,
	// including those that are being closed.
	ending sync.Mutex
	closed bool
}

// commit commits the bytes written to a file. For a closed file, the close did.
func (f *file) commit(ctx context.Context) error {
	f.ending.Lock()
	defer f.ending.Unlock()
	if f.closed {
		return nil
	}
	return f.handle.Flush(ctx)
}

// close ends the file; once.
func (f *file) close(ctx context.Context) error {
	f.ending.Lock()
	defer f.ending.Unlock()
	f.closed = true
	return f.handle.Close(ctx)
}

// openInode is the mount's state of an inode that is open, or about to lose a name.
type openInode struct {
	inode moraine.InodeID
	// opens counts its open files and those being opened, losses the calls that
	// take a name from it.
	opens, losses int
	// losing is not nil while such a call runs, and closed at its end.
	losing chan struct{}
	// kept is set if it may have lost its last name while it was open: the session
	// must release it at the end.
	kept  bool
	files []*file
	// writers counts the files that are open for writing, until what was written is committed.
	writers int
	locks   lockRecord
	dirt    dirt
	// keptAt is where the state says that it may be kept.
	keptAt handover.Place
	// privileged is set if its mode may have setuid or setgid bits, which a write
	// clears.
	privileged atomic.Bool
}

// table is the open files of a mount. The numbers of file handles are never reused.
type table struct {
	turn limit.Resource // to open or remove a file that is being removed

	mu      sync.Mutex // guards the fields below, and all of openInode but privileged and locks
	next    uint64
	handles map[uint64]*file
	inodes  map[moraine.InodeID]*openInode
	// state is what the next daemon needs of the open files; nil: there is no next one.
	state *handover.State
}

func (t *table) init(turn limit.Resource) {
	t.turn = turn
	t.handles, t.inodes = map[uint64]*file{}, map[moraine.InodeID]*openInode{}
}

// pin counts a file that is being opened: a removal of the inode's last name from
// now on keeps it. It waits while a name is being removed, so that either the
// removal knows of the open, or the open finds the file gone. Every pin needs an
// unpin.
func (t *table) pin(ctx context.Context, inode moraine.InodeID) (*openInode, error) {
	for {
		s, losing := t.tryPin(inode)
		if losing == nil {
			return s, nil
		}
		if err := t.awaitTurn(ctx, losing); err != nil {
			return nil, err
		}
	}
}

// awaitTurn waits for the end of a call that takes a name from an inode, at most
// for the mount's patience.
func (t *table) awaitTurn(ctx context.Context, losing <-chan struct{}) error {
	return t.turn.Wait(ctx, func(ctx context.Context) error {
		select {
		case <-losing:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

func (t *table) tryPin(inode moraine.InodeID) (s *openInode, losing chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s = t.entry(inode)
	if s.losing != nil {
		return nil, s.losing
	}
	s.opens++
	return s, nil
}

// entry returns the entry of an inode, and makes it if it is missing. The mutex is
// held.
func (t *table) entry(inode moraine.InodeID) *openInode {
	s := t.inodes[inode]
	if s == nil {
		s = &openInode{inode: inode}
		s.locks.state, s.locks.inode = t.state, inode
		t.inodes[inode] = s
	}
	return s
}

// unpin ends a pin. It reports whether the session must release the inode: it has
// no users and no name.
func (t *table) unpin(s *openInode) (release bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.opens--
	return t.drop(s)
}

// drop forgets an inode without users. An inode that the session must release stays
// until that is done: an open in between would find it, and lose it. The mutex is
// held.
func (t *table) drop(s *openInode) (release bool) {
	if s.opens > 0 || s.losses > 0 {
		return false
	}
	if !s.kept {
		delete(t.inodes, s.inode)
		return false
	}
	s.losing, s.losses, s.kept = make(chan struct{}), 1, false
	return true
}

// beginLoss blocks opens of an inode until endLoss, and reports whether it is open
// now. It waits while another name of it is being removed.
func (t *table) beginLoss(ctx context.Context, inode moraine.InodeID) (s *openInode, open bool, err error) {
	for {
		t.mu.Lock()
		s := t.entry(inode)
		losing := s.losing
		if losing == nil {
			s.losing = make(chan struct{})
			s.losses++
			open := s.opens > 0
			t.mu.Unlock()
			return s, open, nil
		}
		t.mu.Unlock()
		if err := t.awaitTurn(ctx, losing); err != nil {
			return nil, false, err
		}
	}
}

// endLoss ends a beginLoss. kept says that the session may now hold the inode
// without a name. It reports the same as unpin.
func (t *table) endLoss(s *openInode, kept bool) (release bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(s.losing)
	s.losing = nil
	s.losses--
	s.kept = s.kept || kept
	return t.drop(s)
}

// add adds an open file, whose inode the caller has pinned for it.
func (t *table) add(f *file) (fh uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	f.number = t.next
	t.enter(f)
	return t.next
}

// enter adds an open file that has its number. The mutex is held.
func (t *table) enter(f *file) {
	t.handles[f.number] = f
	f.state.files = append(f.state.files, f)
	if f.writes {
		f.state.writers++
	}
}

// take removes an open file. It stays pinned.
func (t *table) take(fh uint64) *file {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.handles[fh]
	if f != nil {
		delete(t.handles, fh)
		f.state.files = slices.DeleteFunc(f.state.files, func(o *file) bool { return o == f })
	}
	return f
}

// get returns an open file, or nil if there is none of that number.
func (t *table) get(fh uint64) *file {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.handles[fh]
}

// of returns an open file of the inode, preferably one for writing; nil if none is
// open.
func (t *table) of(inode moraine.InodeID) *file {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.inodes[inode]
	if s == nil || len(s.files) == 0 {
		return nil
	}
	if i := slices.IndexFunc(s.files, func(f *file) bool { return f.writes }); i >= 0 {
		return s.files[i]
	}
	return s.files[0]
}

// count returns how many files are open.
func (t *table) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.handles)
}

// writers returns the files that are open for writing.
func (t *table) writers() []*file {
	t.mu.Lock()
	defer t.mu.Unlock()
	var fs []*file
	for _, f := range t.handles {
		if f.writes {
			fs = append(fs, f)
		}
	}
	return fs
}

// flushesAtOnce limits the files that are committed concurrently at the end.
const flushesAtOnce = 16

// flushAll commits the bytes written to any file.
func (t *table) flushAll(ctx context.Context) error {
	return each(t.writers(), func(f *file) error { return f.commit(ctx) })
}

// closeAll closes the files that are still open.
func (t *table) closeAll(ctx context.Context) error {
	t.mu.Lock()
	var left []*file
	for _, f := range t.handles {
		left = append(left, f)
	}
	clear(t.handles)
	clear(t.inodes)
	t.mu.Unlock()
	return each(left, func(f *file) error { return f.close(ctx) })
}

func each(fs []*file, do func(*file) error) error {
	var g errgroup.Group
	g.SetLimit(flushesAtOnce)
	errs := make([]error, len(fs))
	for i, f := range fs {
		g.Go(func() error {
			errs[i] = do(f)
			return nil
		})
	}
	_ = g.Wait()
	return errors.Join(errs...)
}
