package fuse

import (
	"context"
	"fmt"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/fuse/handover"
	"golang.org/x/sync/errgroup"
)

// The state of a mount (package handover) names its open files, with the kernel's numbers of them. A
// daemon that begins opens them again before it takes the first request.

// record writes an open file to the state, before the kernel knows its number.
func (f *file) record(state *handover.State, unique uint64, synced bool) {
	slot := handover.Slot{Kind: handover.OpenFile, Inode: uint64(f.state.inode), Handle: f.number, Unique: unique &^ resentBit}
	for flag, set := range map[uint32]bool{handover.Writes: f.writes, handover.Direct: f.direct, handover.HasPages: f.paged != nil, handover.Sync: synced} {
		if set {
			slot.Flags |= flag
		}
	}
	f.place = state.Put(slot)
}

// mayKeep records that a call begins that may take the last name of an open file.
func (t *table) mayKeep(s *openInode) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noteKept(s)
}

// noteKept is mayKeep for a caller that holds the mutex.
func (t *table) noteKept(s *openInode) {
	if s.keptAt == 0 {
		s.keptAt = t.state.Put(handover.Slot{Kind: handover.Kept, Inode: uint64(s.inode)})
	}
}

// forgetKept records that the session has released the file.
func (t *table) forgetKept(s *openInode) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state.Drop(s.keptAt)
	s.keptAt = 0
}

// save writes the ranges to the state, and then drops what was there: a daemon that dies in between
// leaves some twice, which is one lock. The mutex is held.
func (r *lockRecord) save() {
	if r.state == nil {
		return
	}
	old := r.places
	r.places = nil
	for _, l := range r.table {
		slot := handover.Slot{Kind: handover.Lock, Inode: uint64(r.inode), Handle: l.Session, Owner: l.ID, Start: l.Start, End: l.End, PID: l.PID}
		if l.Flock {
			slot.Flags |= handover.Flock
		}
		if l.Write {
			slot.Flags |= handover.Write
		}
		r.places = append(r.places, r.state.Put(slot))
	}
	for _, p := range old {
		r.state.Drop(p)
	}
}

// fhsPerLife is how many handles one daemon may open.
const fhsPerLife = 1 << 40

// restore opens what daemons before had open. An error means that the service did not answer.
func restore(ctx context.Context, o *openFiles, d *Device) error {
	o.files.next = d.life * fhsPerLife
	dirty := map[moraine.InodeID]handover.Place{}
	for _, at := range d.slots {
		inode := moraine.InodeID(at.Inode)
		switch at.Kind {
		case handover.Dirty:
			o.files.state.Drop(dirty[inode])
			dirty[inode] = at.Place
		case handover.Kept:
			s := o.files.entry(inode)
			o.files.state.Drop(s.keptAt)
			s.kept, s.keptAt = true, at.Place
		case handover.Paged:
			o.pages.adopt(inode, at.Place)
		}
	}
	if err := reopen(ctx, o, d.slots); err != nil {
		return err
	}
	o.client.Inodes().Resumed()
	restoreLocks(o, d)
	lost := 0
	for inode, place := range dirty {
		if !o.files.faultAll(inode, place) {
			o.files.state.Drop(place)
			continue
		}
		lost++
	}
	o.log.Info("the mount goes on", "life", d.life, "files", o.files.count(), "files with lost writes", lost)
	for _, s := range o.files.unused() {
		o.release(s, true)
	}
	return nil
}

// reopen opens the files of the slots again, some at once.
func reopen(ctx context.Context, o *openFiles, slots []handover.At) error {
	var g errgroup.Group
	g.SetLimit(flushesAtOnce)
	for _, at := range slots {
		if at.Kind == handover.OpenFile {
			g.Go(func() error { return reopenOne(ctx, o, at) })
		}
	}
	return g.Wait()
}

func reopenOne(ctx context.Context, o *openFiles, at handover.At) error {
	inode := moraine.InodeID(at.Inode)
	h, err := o.client.Inodes().OpenHandle(ctx, inode, handleOptions(o.level, at.Flags&handover.Sync != 0))
	switch moraine.KindOf(err) {
	case moraine.Timeout, moraine.Canceled, moraine.Unavailable, moraine.SessionExpired, moraine.NotLeader:
		if err != nil {
			return fmt.Errorf("open file %s again: %w", inode, err)
		}
	}
	if err != nil { // another mount removed it, or its session had kept it and ended
		o.gone.Store(at.Handle, at.Place)
		return nil
	}
	t := &o.files
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.entry(inode)
	s.opens++
	s.notePrivileges(h.Attr().Mode())
	f := &file{state: s, handle: h, number: at.Handle, place: at.Place, writes: at.Flags&handover.Writes != 0, direct: at.Flags&handover.Direct != 0}
	if at.Flags&handover.HasPages != 0 {
		f.paged = o.pages.use(inode)
	}
	if h.Attr().Nlink() == 0 { // also one that another mount removed: the session keeps it, or will
		s.kept = true
		t.noteKept(s)
	}
	t.enter(f)
	o.restored.Store(at.Unique, at.Handle)
	return nil
}

// restoreLocks takes over the locks. Those of another session are lost, and the client knows it.
func restoreLocks(o *openFiles, d *Device) {
	for _, at := range d.slots {
		if at.Kind != handover.Lock {
			continue
		}
		f := o.files.get(at.Handle)
		if f == nil { // its file is gone
			o.files.state.Drop(at.Place)
			continue
		}
		l := client.FileLock{Owner: at.Owner, Flock: at.Flags&handover.Flock != 0, Start: at.Start, End: at.End, Write: at.Flags&handover.Write != 0, PID: at.PID}
		f.state.locks.note(at.Handle, l)
		o.files.state.Drop(at.Place) // it is saved at another place
		o.client.Inodes().AdoptLock(f.state.inode, l, moraine.SessionID(d.session))
	}
}

// faultAll has each open file of an inode report, once, that written bytes are lost. It is false if
// none is open.
func (t *table) faultAll(inode moraine.InodeID, place handover.Place) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.inodes[inode]
	if s == nil || len(s.files) == 0 {
		return false
	}
	s.dirt.place = place
	for _, f := range s.files {
		f.fault.Store(true)
	}
	return true
}

// unused takes the kept inodes that nobody has open: their release was not done.
func (t *table) unused() (all []*openInode) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.inodes {
		if t.drop(s) {
			all = append(all, s)
		}
	}
	return all
}

// adopt records that the kernel may have pages of an inode since an earlier daemon.
func (p *pages) adopt(inode moraine.InodeID, place handover.Place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[inode] != nil {
		p.state.Drop(place)
		return
	}
	n := newPagedInode(inode)
	n.place = place
	p.of[inode] = n
}

// releaseGone ends a handle whose file was gone when this daemon began.
func releaseGone(o *openFiles, fh uint64) {
	if place, ok := o.gone.LoadAndDelete(fh); ok {
		o.files.state.Drop(place.(handover.Place))
	}
}

// notOpenAs is the answer for handles of which at least one is not in the table.
func (o *openFiles) notOpenAs(handles ...uint64) gofuse.Status {
	for _, fh := range handles {
		if _, ok := o.gone.Load(fh); ok {
			return gofuse.Status(syscall.ESTALE)
		}
	}
	return o.notOpen()
}
