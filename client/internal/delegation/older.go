package delegation

import (
	"context"
	"time"

	"github.com/morainefs/moraine/transport/wire"
)

// An entry is older if it was in its directory when that was delegated. The session alone changes the
// names of the directory, so the desk takes or moves a name by itself. It knows the number and the type of
// the inode, which never change. Everything else about the inode others may change meanwhile: its attributes,
// its content, and names in other directories. The service reads all that when it applies the change, and so
// does each client that reads the inode after a change: such a read waits for the queue. RFC 0033 says why the
// service cannot refuse the change.

// nodeAt returns what has a name in a delegated directory, and a node outside of the table if it is older.
// errPlain: a directory that is not delegated, of which the desk knows too little, or what is sealed. The caller
// holds the mutex.
func (d *table) nodeAt(parent uint64, name string, e entry) (*node, error) {
	n := d.nodes[e.inode]
	switch {
	case n == nil && e.typ == wire.FileType_FILE_TYPE_DIRECTORY, e.sealed:
		return nil, errPlain
	case d.holds[e.inode] > 0:
		return nil, errHeld
	case n == nil:
		return &node{attr: &wire.Attr{Inode: e.inode, Type: e.typ, Parent: parent}, name: name}, nil
	}
	return n, nil
}

// shown reports whether the service, and so the cache and the kernel, may have attributes of an inode that the desk
// has not. The caller holds the mutex.
func (n *node) shown(d *table) bool { return !n.born || d.isOld(n) }

// reply is the answer with the attributes of a node, or without them if only the service knows them. The caller
// holds the mutex.
func (d *table) reply(n *node) *wire.MetaResponse {
	if n.shown(d) {
		return entryReply(nil)
	}
	return entryReply(n.attr)
}

// drop makes the cache forget an inode that the desk has changed, also what answers on their way say of it.
func (d *table) drop(inode uint64) {
	d.Service.Hide(inode)
	d.Service.Show(inode)
}

// lent lets a change wait, once, while kernels may have names from before the delegation of its directories.
// The caller holds the mutex.
func (d *table) lent(c *call, dirs ...*dir) error {
	for _, l := range dirs {
		if !d.Clock.Now().Before(l.lent) {
			continue
		}
		if !c.awaited {
			return errLent
		}
		c.settle = append(c.settle, l.id)
	}
	return nil
}

// awaitAsked lets a change of older names wait while the desk asks for its directories: what comes after the
// answer needs no request. In a tree that the client removes, where it has just removed older entries of
// another directory, it asks before the first removal.
func (d *table) awaitAsked(ctx context.Context, ids ...uint64) { d.ahead(ctx, &d.asks.swept, ids...) }

// awaitListed is awaitAsked for the listing of a directory, while the client removes directories too.
func (d *table) awaitListed(ctx context.Context, id uint64) {
	d.mu.Lock()
	sweeps := d.Clock.Since(d.asks.emptied) < askWindow
	d.mu.Unlock()
	if sweeps {
		d.ahead(ctx, &d.asks.emptied, id)
	}
}

// ahead is awaitAsked, which asks within askWindow of a time.
func (d *table) ahead(ctx context.Context, from *time.Time, ids ...uint64) {
	var asked []*ask
	d.mu.Lock()
	for _, id := range ids {
		if d.dirs[id] == nil && d.Clock.Since(*from) < askWindow {
			d.askFor(id, d.asks.at(id))
		}
		if a := d.asks.of[id]; a != nil && a.asking {
			asked = append(asked, a)
		}
	}
	d.mu.Unlock()
	for _, a := range asked {
		_ = d.until(ctx, func() bool { return !a.asking }) // if ctx ends, the request finds that too
	}
}
