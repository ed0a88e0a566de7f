package metadata

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/leases"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxWatchWait bounds how long a watch without changes waits.
	maxWatchWait = 30 * time.Second
)

// watch answers what changed below a directory since a log entry, and waits for a change as long as
// requested. It keeps no state per watch: every server remembers the recent changes, so that
// another leader can continue it.
func (l *leader) watch(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	req := c.Req.GetWatch()
	if err := l.mayWatch(ctx, c); err != nil {
		return nil, err
	}
	over := l.Clock.After(min(time.Duration(req.WaitMillis)*time.Millisecond, maxWatchWait))
	reply := &wire.WatchReply{Next: req.After, Incarnation: uint64(l.Cluster.Incarnation)}
	if req.Incarnation != reply.Incarnation {
		reply.Next = 0 // an entry of a lost incarnation says nothing about this one
	}
	for {
		found, next, covered, more := l.lease.ChangedSince(reply.Next)
		if !covered {
			reply.Resync, reply.Next = true, next
			break
		}
		events, err := l.events(ctx, moraine.InodeID(req.Directory), found)
		if err != nil {
			return nil, err
		}
		reply.Events, reply.Next = events, next
		if len(events) > 0 {
			break
		}
		if more == nil { // some changes were not inspected
			continue
		}
		select {
		case <-more:
			continue
		case <-over:
		case <-ctx.Done():
			return nil, lead.ContextError("metadata.watch", ctx)
		case <-l.Done:
			return nil, lead.ErrStopped
		}
		break
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Watch{Watch: reply}}, nil
}

// mayWatch fails unless the caller can see the directory.
func (l *leader) mayWatch(ctx context.Context, c *lead.Call) error {
	req := &wire.MetaRequest{Session: c.Req.Session, Partition: c.Req.Partition,
		Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: c.Req.GetWatch().Directory, Limit: 1}}}
	resp, err := l.read(ctx, &lead.Call{Req: req, Caller: c.Caller})
	if err == nil && resp.Error != nil {
		err = transport.ErrorFromWire(resp.Error)
	}
	return err
}

// events converts changes to events below top, once no session has a lease by which it could still
// see the former state.
func (l *leader) events(ctx context.Context, top moraine.InodeID, found []leases.Change) ([]*wire.WatchEvent, error) {
	var seen kvtx.Seen
	for i := range found {
		seen.Touches = append(seen.Touches, found[i].Touch)
	}
	if len(found) == 0 {
		return nil, nil
	}
	if err := l.leases.ResolveSeen(ctx, &seen); err != nil {
		return nil, err
	}
	// The changes are noted while their entries are applied, before the state shows them.
	if err := l.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	var events []*wire.WatchEvent
	err := l.Store.View(func(r kvtx.Reader, _ uint64) error {
		w := watcher{machine: l.Machine, r: r, top: top, below: map[moraine.InodeID]placed{}}
		for len(found) > 0 {
			n := 1
			for n < len(found) && found[n].Index == found[0].Index {
				n++
			}
			if err := w.entry(found[:n]); err != nil {
				return err
			}
			found = found[n:]
		}
		events = w.events
		return w.types()
	})
	return events, err
}

// watcher converts changes to events. Paths are those of the state that it reads.
type watcher struct {
	machine *state.Machine
	r       kvtx.Reader
	top     moraine.InodeID
	below   map[moraine.InodeID]placed // directories already located
	events  []*wire.WatchEvent
}

// placed is an inode's place below the top.
type placed struct {
	path string
	ok   bool
}

// entry converts the changes of one log entry. A lost name and a new name of one inode are a
// rename. Attributes that change together with a name get no event of their own.
func (w *watcher) entry(changes []leases.Change) error {
	moved := make(map[moraine.InodeID]*wire.WatchEvent, len(changes)) // by inode: its last removal
	reported := make(map[moraine.InodeID]bool, len(changes))
	for i := range changes {
		t := &changes[i].Touch
		if t.Name == "" {
			continue
		}
		reported[t.Lease], reported[t.Inode] = true, true
		dir, err := w.place(t.Lease)
		if err != nil {
			return err
		}
		e := &wire.WatchEvent{Inode: uint64(t.Inode), Path: path.Join(dir.path, t.Name), Index: changes[i].Index}
		was := moved[t.Inode]
		switch {
		case t.Change == kvtx.Removed && dir.ok:
			e.Kind = wire.WatchKind_WATCH_REMOVED
			moved[t.Inode] = e
		case t.Change == kvtx.Added && dir.ok && was != nil:
			was.Kind, was.OldPath, was.Path = wire.WatchKind_WATCH_RENAMED, was.Path, e.Path
			delete(moved, t.Inode)
			continue
		case t.Change == kvtx.Added && dir.ok:
			e.Kind = wire.WatchKind_WATCH_CREATED
			if err := w.arrived(e); err != nil {
				return err
			}
		default:
			continue
		}
		w.events = append(w.events, e)
	}
	for i := range changes {
		t := &changes[i].Touch
		if t.Name != "" || t.Inode == 0 || reported[t.Inode] {
			continue
		}
		reported[t.Inode] = true
		at, err := w.place(t.Inode)
		if err != nil {
			return err
		}
		if at.ok {
			w.events = append(w.events, &wire.WatchEvent{Kind: wire.WatchKind_WATCH_CHANGED, Path: at.path,
				Inode: uint64(t.Inode), Index: changes[i].Index})
		}
	}
	return nil
}

// arrived removes the events below a directory that came from elsewhere. They happened while it was
// not below the top, and the watcher may not be allowed to see the names.
func (w *watcher) arrived(e *wire.WatchEvent) error {
	typ, err := names.TypeOf(w.machine.View(w.r), moraine.InodeID(e.Inode))
	if err != nil || typ != wire.FileType_FILE_TYPE_DIRECTORY {
		return err
	}
	at, err := w.place(moraine.InodeID(e.Inode))
	if err != nil || !at.ok {
		return err
	}
	inside := func(p string) bool { return strings.HasPrefix(p, at.path+"/") }
	w.events = slices.DeleteFunc(w.events, func(b *wire.WatchEvent) bool {
		to, renamed := inside(b.Path), b.Kind == wire.WatchKind_WATCH_RENAMED
		switch {
		case renamed && to && !inside(b.OldPath):
			b.Kind, b.Path, b.OldPath = wire.WatchKind_WATCH_REMOVED, b.OldPath, ""
			return false
		case renamed && !to && inside(b.OldPath):
			b.Kind, b.OldPath = wire.WatchKind_WATCH_CREATED, ""
		}
		return to || b.Kind == wire.WatchKind_WATCH_CHANGED && b.Inode == e.Inode
	})
	return nil
}

// types adds the type of inode to each event, except removals, whose inode may be gone.
func (w *watcher) types() (err error) {
	for _, e := range w.events {
		if e.Kind == wire.WatchKind_WATCH_REMOVED {
			continue
		}
		if e.Type, err = names.TypeOf(w.machine.View(w.r), moraine.InodeID(e.Inode)); err != nil {
			return err
		}
	}
	return nil
}

// place locates an inode below the top.
func (w *watcher) place(id moraine.InodeID) (placed, error) {
	if p, ok := w.below[id]; ok {
		return p, nil
	}
	p, ok, err := tree.PathBelow(w.machine.View(w.r), w.top, id)
	w.below[id] = placed{p, ok}
	return w.below[id], err
}
