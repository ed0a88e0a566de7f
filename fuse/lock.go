package fuse

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/fuse/handover"
	"github.com/morainefs/moraine/internal/locktable"
)

// The kernel keeps no locks of files on this mount: it sends each request, with a number for the
// owner. For fcntl the owner is the process, for flock and for fcntl with F_OFD_SETLK it is the
// open file. A close sends the process in a Flush, whose locks then end. When the last descriptor
// of an open file is gone, Release ends what was locked through it.
//
// The kernel may give the number of an open file that is gone to a new one, before its Release
// arrives here. So the owner of a flock is the handle, whose number is never reused. For fcntl the
// requests do not show whether the owner is a process. There the Release ends only the ranges that
// were locked through its handle, and since then through no other.

// lockRecord is the ranges of an inode that were locked, by handle and owner. As the session of an
// owner it has the handle.
type lockRecord struct {
	mu     sync.Mutex
	table  locktable.Table
	wanted []*locktable.Lock // of requests that run

	inode  moraine.InodeID
	state  *handover.State
	places []handover.Place // where the state has the ranges
}

func recorded(handle uint64, l client.FileLock) locktable.Lock {
	return locktable.Lock{Owner: locktable.Owner{Session: handle, Flock: l.Flock, ID: l.Owner}, Start: l.Start, End: l.End, Write: l.Write, PID: l.PID}
}

// note records that the range was locked through the handle.
func (r *lockRecord) note(handle uint64, l client.FileLock) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clear(l)
	r.table = r.table.Set(recorded(handle, l))
	r.save()
}

// end records that the owner has nothing in the range.
func (r *lockRecord) end(l client.FileLock) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clear(l)
	r.save()
}

// clear is end for a caller that holds the mutex.
func (r *lockRecord) clear(l client.FileLock) {
	r.table = r.table.ClearOf(l.Flock, l.Owner, l.Start, l.End)
}

// want records that a request for a lock runs, through the handle. The caller calls over at its end.
func (r *lockRecord) want(handle uint64, l client.FileLock) (over func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := recorded(handle, l)
	r.wanted = append(r.wanted, &w)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.wanted = slices.DeleteFunc(r.wanted, func(o *locktable.Lock) bool { return o == &w })
	}
}

// take returns what was locked through the handle, and forgets it. What a running request of the owner
// wants through another handle stays, and is now of that handle.
func (r *lockRecord) take(handle uint64) (all []client.FileLock) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var own locktable.Table
	for _, h := range r.table {
		if h.Session == handle {
			own = append(own, h)
		}
	}
	r.table = r.table.Drop(handle)
	for _, w := range r.wanted {
		from := locktable.Owner{Session: handle, Flock: w.Flock, ID: w.ID}
		for _, h := range own.Owned(from) {
			h.Owner, h.Start, h.End = w.Owner, max(h.Start, w.Start), min(h.End, w.End)
			if h.Start < h.End {
				r.table = r.table.Set(h)
			}
		}
		own = own.Clear(from, w.Start, w.End)
	}
	r.save()
	for _, h := range own {
		all = append(all, client.FileLock{Owner: h.ID, Flock: h.Flock, Start: h.Start, End: h.End})
	}
	return all
}

// owners returns the owners that locked something by fcntl through the handle.
func (r *lockRecord) owners(handle uint64) (all []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.table {
		if h.Session == handle && !h.Flock && !slices.Contains(all, h.ID) {
			all = append(all, h.ID)
		}
	}
	return all
}

// has reports whether the process locked something, through any handle.
func (r *lockRecord) has(process uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.table, func(l locktable.Lock) bool { return !l.Flock && l.ID == process })
}

// through reports whether something was locked through the handle.
func (r *lockRecord) through(handle uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table.HasSession(handle)
}

// SetLk implements gofuse.RawFileSystem: a lock without a wait.
func (o *openFiles) SetLk(cancel <-chan struct{}, in *gofuse.LkIn) gofuse.Status {
	return o.setLock(cancel, in, false)
}

// SetLkw implements gofuse.RawFileSystem: a lock with a wait. After EINTR the kernel repeats the
// call, unless a signal handler ran that does not want that.
func (o *openFiles) SetLkw(cancel <-chan struct{}, in *gofuse.LkIn) gofuse.Status {
	return o.setLock(cancel, in, true)
}

func (o *openFiles) setLock(cancel <-chan struct{}, in *gofuse.LkIn, wait bool) gofuse.Status {
	f := o.files.get(in.Fh)
	if f == nil {
		return o.notOpenAs(in.Fh)
	}
	l, ok := requestedLock(in)
	if !ok {
		return gofuse.EINVAL
	}
	begin := o.request
	if wait {
		begin = o.unbounded // the holder may keep the lock for ever
	}
	ctx, done := begin(cancel, &in.InHeader)
	defer done()
	// The next holder sees what was written under the lock, through any of its owner's open files.
	if !l.Write {
		if err := f.handle.WriteBack(ctx); pending(err) {
			return lockStatus(err)
		}
	}
	if in.Lk.Typ == syscall.F_UNLCK {
		return lockStatus(o.unlock(ctx, f.state, l))
	}
	// Before the wait: a Release that begins later leaves the range alone, and an earlier one is over.
	defer f.state.locks.want(f.number, l)()
	if err := o.closings.wait(ctx, closer{f.state.inode, l.Owner}); err != nil {
		return lockStatus(err)
	}
	if err := o.client.Inodes().Lock(ctx, f.state.inode, l, wait); err != nil {
		return lockStatus(err)
	}
	f.state.locks.note(f.number, l)
	// The holder sees what the holders before it wrote. On error the lock stays, as the owner may have
	// had part of it before: the next read requests the content first.
	_ = f.handle.Refresh(ctx)
	return gofuse.OK
}

// GetLk implements gofuse.RawFileSystem. A process number means nothing on another node: there the
// answer is 0.
func (o *openFiles) GetLk(cancel <-chan struct{}, in *gofuse.LkIn, out *gofuse.LkOut) gofuse.Status {
	f := o.files.get(in.Fh)
	if f == nil {
		return o.notOpenAs(in.Fh)
	}
	l, ok := requestedLock(in)
	if !ok {
		return gofuse.EINVAL
	}
	ctx, done := o.request(cancel, &in.InHeader)
	defer done()
	by, own, found, err := o.client.Inodes().FindLock(ctx, f.state.inode, l)
	if err != nil {
		return lockStatus(err)
	}
	out.Lk = gofuse.FileLock{Typ: syscall.F_UNLCK}
	if found {
		out.Lk = gofuse.FileLock{Start: by.Start, End: by.End - 1, Typ: syscall.F_RDLCK}
		if by.Write {
			out.Lk.Typ = syscall.F_WRLCK
		}
		if own {
			out.Lk.Pid = by.PID
		}
	}
	return gofuse.OK
}

// requestedLock converts the kernel's request. Its ranges include their last byte.
func requestedLock(in *gofuse.LkIn) (l client.FileLock, ok bool) {
	if in.Lk.Start > in.Lk.End || in.Lk.End >= client.LockEnd {
		return l, false
	}
	l = client.FileLock{Owner: in.Owner, Flock: in.LkFlags&gofuse.LK_FLOCK != 0, Start: in.Lk.Start, End: in.Lk.End + 1,
		Write: in.Lk.Typ == syscall.F_WRLCK, PID: in.Lk.Pid}
	if l.Flock {
		l.Owner = in.Fh
	}
	return l, true
}

// lockStatus is the answer to a request about locks.
func lockStatus(err error) gofuse.Status {
	switch {
	case err == nil:
		return gofuse.OK
	case errors.Is(err, client.ErrDeadlock):
		return gofuse.Status(syscall.EDEADLK)
	}
	switch moraine.KindOf(err) {
	case moraine.Busy:
		return gofuse.EAGAIN
	case moraine.QuotaExceeded, moraine.TooLarge:
		return gofuse.Status(syscall.ENOLCK)
	}
	return nodeStatus(err)
}

// unlock ends an owner's locks in a range. On error it goes on in the background.
func (o *openFiles) unlock(ctx context.Context, s *openInode, l client.FileLock) error {
	err := o.client.Inodes().Unlock(ctx, s.inode, l)
	if !errors.Is(err, moraine.QuotaExceeded) { // which changes nothing
		s.locks.end(l)
	}
	return err
}

// pending reports whether bytes are still to be committed after the error of a WriteBack or Flush:
// the lock over them must stay. After another error they are lost, which the next fsync or close
// returns, and must not keep the lock.
func pending(err error) bool {
	return errors.Is(err, moraine.Canceled) || errors.Is(err, moraine.Timeout)
}

// all returns the open files.
func (t *table) all() []*file {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.handles))
}
