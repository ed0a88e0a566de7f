package fuse

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine/fuse/handover"
)

// dirt records, for the next daemon, whether a file has written bytes that are not committed. If this
// daemon dies, these are lost, and the next one reports that.
type dirt struct {
	mu      sync.Mutex
	place   handover.Place // 0: none
	writing int            // writes that run
}

// beginWrite records that a write of the file begins. Each has an endWrite.
func (t *table) beginWrite(s *openInode) {
	if t.state == nil {
		return
	}
	d := &s.dirt
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writing++
	if d.place == 0 {
		d.place = t.state.Put(handover.Slot{Kind: handover.Dirty, Inode: uint64(s.inode)})
	}
}

func (t *table) endWrite(s *openInode) {
	if t.state == nil {
		return
	}
	s.dirt.mu.Lock()
	defer s.dirt.mu.Unlock()
	s.dirt.writing--
}

// clean records that the file has no such bytes, if that is so. Without open files what could not be
// committed is given up, and was reported.
func (t *table) clean(s *openInode) {
	if t.state == nil {
		return
	}
	d := &s.dirt
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.place == 0 || d.writing > 0 || t.isDirty(s) {
		return
	}
	t.state.Drop(d.place)
	d.place = 0
}

// isDirty reports whether bytes of a file are not committed, or a loss is not reported.
func (t *table) isDirty(s *openInode) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(s.files) == 0 {
		return false
	}
	return s.files[0].handle.Uncommitted() || slices.ContainsFunc(s.files, func(f *file) bool { return f.fault.Load() })
}

// cleanEvery is how often the mount looks which files the client has committed by itself.
const cleanEvery = time.Second

// cleanEach records which files are clean, until ctx ends.
func (t *table) cleanEach(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(cleanEvery):
			t.cleanAll()
		}
	}
}

func (t *table) cleanAll() {
	t.mu.Lock()
	var all []*openInode
	for _, s := range t.inodes {
		all = append(all, s)
	}
	t.mu.Unlock()
	for _, s := range all {
		t.clean(s)
	}
}

// committed is the answer of a call that commits a file. It reports what a daemon before lost, until an
// fsync has. A close does not end that: it may be of a child process that never wrote.
func (o *openFiles) committed(f *file, err error, fsync bool) gofuse.Status {
	lost := f.fault.Load()
	if fsync {
		lost = f.fault.Swap(false)
	}
	o.files.clean(f.state)
	if lost {
		return gofuse.Status(syscall.EIO)
	}
	return status(err)
}
