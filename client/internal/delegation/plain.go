package delegation

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// reach is what a request to the service has to do with the desk.
type reach struct {
	reads []uint64 // inodes of which the service must know all that was changed
	all   bool     // of all inodes
	named []uint64 // inodes that it may change
	ends  bool     // it may change any: nothing is delegated meanwhile
}

// reachOf returns the reach of a request. One that is not listed is one of the worst kind.
func reachOf(req *wire.MetaRequest) reach {
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_GetAttr:
		return reach{reads: []uint64{op.GetAttr.GetInode()}}
	case *wire.MetaRequest_GetXattr:
		return reach{reads: []uint64{op.GetXattr.GetInode()}}
	case *wire.MetaRequest_GetExtents:
		return reach{reads: []uint64{op.GetExtents.GetInode()}}
	case *wire.MetaRequest_Grant:
		return reach{reads: []uint64{op.Grant.GetInode()}}
	case *wire.MetaRequest_GetPolicy:
		return reach{reads: []uint64{op.GetPolicy.GetInode()}}
	case *wire.MetaRequest_Link, *wire.MetaRequest_SetAttr, *wire.MetaRequest_SetXattr, *wire.MetaRequest_Commit:
		named := transport.Named(req)
		return reach{reads: named, named: named}
	case *wire.MetaRequest_Create: // the answer may show what has the name
		return reach{all: !op.Create.GetExclusive(), reads: transport.Named(req), named: transport.Named(req)}
	case *wire.MetaRequest_Remove: // a directory must be empty
		return reach{all: op.Remove.GetDirectory(), reads: transport.Named(req), named: transport.Named(req)}
	case *wire.MetaRequest_Rename:
		return reach{all: true, named: transport.Named(req)}
	case *wire.MetaRequest_Clone: // of ranges of any files
		return reach{all: true, named: []uint64{op.Clone.GetInode(), op.Clone.GetLink().GetParent()}}
	case *wire.MetaRequest_Release:
		return reach{reads: op.Release.GetInodes(), named: op.Release.GetInodes()}
	case *wire.MetaRequest_SetLock:
		return reach{reads: []uint64{op.SetLock.GetInode()}}
	case *wire.MetaRequest_GetLock:
		return reach{reads: []uint64{op.GetLock.GetInode()}}
	case *wire.MetaRequest_AwaitLock:
		return reach{reads: []uint64{op.AwaitLock.GetInode()}}
	case *wire.MetaRequest_Keep: // of files without a name
		return reach{reads: op.Keep.GetInodes()}
	case *wire.MetaRequest_LeaseStep, *wire.MetaRequest_ReleaseStep: // no directory of a checkpoint is delegated
		return reach{}
	case *wire.MetaRequest_RaiseAtimes: // nobody waits for it, and it skips files that are not made there yet
		return reach{}
	case *wire.MetaRequest_EndGrant, *wire.MetaRequest_ReportBadChunks, *wire.MetaRequest_Place:
		return reach{}
	}
	switch effect := ops.Of(req).Effect; {
	case effect == wire.Operation_READ || effect == wire.Operation_ACTION:
		return reach{all: true}
	case effect == wire.Operation_COMMAND:
		return reach{all: true, ends: true}
	}
	return reach{}
}

// Begin begins a request that goes to the service. It waits until what the request depends on is
// there. The caller calls end, if it is not nil, with the outcome.
func (d *Desk) Begin(ctx context.Context, req *wire.MetaRequest) (end func(*wire.MetaResponse, error), err error) {
	if d == nil {
		return nil, nil
	}
	op := ops.Of(req)
	if op == nil || !d.engaged.Load() && op.Effect != wire.Operation_COMMAND {
		return nil, nil
	}
	r := reachOf(req)
	if r.ends {
		d.mu.Lock()
		d.ending++
		d.mu.Unlock()
	}
	target := uint64(0)
	err = d.until(ctx, func() bool {
		if target == 0 {
			target = d.queue.target(r)
		}
		if !d.ready(r, target) {
			return false
		}
		for _, inode := range r.named {
			d.holds[inode]++
		}
		return true
	})
	if err != nil && r.ends {
		d.mu.Lock()
		d.ending--
		d.mu.Unlock()
	}
	if err != nil || len(r.named) == 0 && !r.ends {
		return nil, err
	}
	return func(resp *wire.MetaResponse, err error) { d.ended(req, r, resp, err) }, nil
}

// ready reports whether a request may go to the service. The caller holds the mutex.
func (d *Desk) ready(r reach, target uint64) bool {
	if r.ends && len(d.dirs)+d.asks.running > 0 {
		d.giveAll()
		return false
	}
	if d.queue.done < target {
		d.want(target)
		return false
	}
	for _, inode := range r.named {
		if n := d.nodes[inode]; n != nil && n.dir != nil && n.dir.state == dirLoading {
			return false
		}
	}
	return true
}

// ended ends a request that may have changed inodes, or ended all delegations.
func (d *Desk) ended(req *wire.MetaRequest, r reach, resp *wire.MetaResponse, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.ends {
		d.ending--
	}
	for _, inode := range r.named {
		if d.holds[inode]--; d.holds[inode] == 0 {
			delete(d.holds, inode)
		}
	}
	a := resp.GetEntry().GetAttr()
	if a == nil {
		a = resp.GetCommit().GetAttr()
	}
	if a != nil {
		d.times.saw(a.Ctime, d.Clock.Now())
	}
	d.follow(req, r, resp, err)
	if err == nil {
		for _, dir := range changesOf(req) {
			d.made(dir)
		}
		if c := req.GetCreate(); c.GetExclusive() && c.Type == wire.FileType_FILE_TYPE_DIRECTORY {
			d.madeDir(a.GetInode(), c.Parent)
		}
	}
	d.wake()
}

// follow brings the table to what a request did at the service. The caller holds the mutex.
func (d *Desk) follow(req *wire.MetaRequest, r reach, resp *wire.MetaResponse, err error) {
	if err != nil && !unsure(err) {
		return
	}
	for _, inode := range r.named {
		if n := d.nodes[inode]; n != nil && n.dir != nil && !d.followIn(n.dir, req, resp, err) {
			d.give(n.dir)
		}
		if n := d.nodes[inode]; n != nil && req.GetSetXattr() != nil {
			n.xattrs = true
		}
		if link := req.GetLink(); link != nil && link.Inode == inode {
			d.disown(inode)
		} else if !d.learn(inode, resp, err) {
			d.markOld(inode)
		}
	}
	if op := req.GetRename(); op != nil {
		d.disown(resp.GetEntry().GetAttr().GetInode())
		for _, l := range d.dirs { // the other inode of an exchange may be any of them
			l.stale = l.stale || op.Exchange
		}
	}
	if gone := resp.GetRemove().GetInode(); gone != 0 {
		if n := d.nodes[gone]; n != nil {
			d.end(n)
		}
	}
}

// learnedFor is for how long the desk knows attributes that the service has answered: jobs of the service
// may change them, such as the level of the content.
const learnedFor = time.Second

// learn takes the attributes of a file that was born here from the answer to a change of it: the session
// knows no newer ones, since nothing about the file is queued and no other request is changing it. It
// returns false if that is not so. The caller holds the mutex.
func (d *table) learn(inode uint64, resp *wire.MetaResponse, err error) bool {
	n, a := d.nodes[inode], resp.GetCommit().GetAttr()
	if a == nil {
		a = resp.GetEntry().GetAttr()
	}
	if err != nil || n == nil || !n.born || n.old || n.dir != nil || d.holds[inode] > 0 || d.queue.about[inode] > 0 ||
		a.GetInode() != inode || a.Parent != n.attr.Parent || a.Nlink != n.attr.Nlink {
		return false
	}
	n.attr, n.learned = a, d.Clock.Now()
	return true
}

// followIn brings the names of a directory to what a request did. It returns false if it cannot.
func (d *Desk) followIn(l *dir, req *wire.MetaRequest, resp *wire.MetaResponse, err error) bool {
	if err != nil {
		return false
	}
	a := resp.GetEntry().GetAttr()
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_Create:
		if op.Create.Unlinked {
			return true
		}
		l.put(op.Create.Name, entryOf(a))
	case *wire.MetaRequest_Link:
		if op.Link.Parent == l.id {
			l.put(op.Link.Name, entryOf(a))
		}
	case *wire.MetaRequest_Remove:
		l.remove(op.Remove.Name)
	case *wire.MetaRequest_Rename:
		return d.followRename(l, op.Rename, a)
	case *wire.MetaRequest_SetAttr:
	case *wire.MetaRequest_SetXattr:
		return op.SetXattr.Name != moraine.DefaultACL // from now on new entries inherit it, by rules that the desk does not know
	default: // a commit with a name
		return false
	}
	return true
}

// followRename is followIn for the rename of what a describes.
func (d *Desk) followRename(l *dir, op *wire.Rename, a *wire.Attr) bool {
	if op.Exchange || op.Whiteout || a == nil || a.Nlink > 1 && a.Type != wire.FileType_FILE_TYPE_DIRECTORY {
		return false
	}
	if l.id == op.Parent {
		l.remove(op.Name)
	}
	if l.id == op.NewParent {
		if n := d.nodes[l.names[op.NewName].inode]; n != nil && n.attr.Inode != a.Inode {
			d.end(n)
		}
		l.put(op.NewName, entryOf(a))
	}
	return true
}

// unsure reports whether a failed request may have changed something.
func unsure(err error) bool {
	switch moraine.KindOf(err) {
	case moraine.Timeout, moraine.Canceled, moraine.SessionExpired, moraine.Unavailable, moraine.IOError:
		return true
	}
	return false
}
