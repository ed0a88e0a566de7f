package delegation

import (
	"slices"
	"sort"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine/transport/wire"
)

// node is an inode whose attributes the desk knows better than the service: one born here, or a
// delegated directory.
type node struct {
	attr *wire.Attr // replaced, never changed
	name string     // its entry in attr.Parent, if it was born here
	// born says that the session made it in a directory that is still delegated, so that nobody else
	// has seen it.
	born bool
	// old says that a request to the service changed the attributes of a file: they are read there.
	old bool
	// learned is when the service answered attr, the last time that it did; zero: never.
	learned time.Time
	// xattrs says that it may have extended attributes: only the service sets them.
	xattrs bool
	dir    *dir    // of a delegated directory
	made   *change // its create, while it is not sent
	last   *change // the newest change of it
}

// dir is a delegated directory.
type dir struct {
	id    uint64
	names map[string]entry
	order []string // of names, sorted; nil if it must be sorted again
	under Standing
	state dirState
	depth int     // below the directory that the service delegated; this one is made at its birth
	stale bool    // its attributes are not those of the table, since a request went to the service
	last  *change // the newest change of its names
	used  uint64  // Desk.used when it was used last
	// changed is when the client last changed a name in it, it, or a file born in it.
	changed time.Time
	// lent is until when kernels may have names and attributes from before the delegation.
	lent time.Time
}

type dirState uint8

const (
	dirLoading dirState = iota // its names or attributes are being read
	dirLive
	dirEnding // it is given back
)

type entry struct {
	inode uint64
	typ   wire.FileType
	// sealed says that it belongs to a checkpoint, although the directory need not.
	sealed bool
}

func entryOf(a *wire.Attr) entry { return entry{a.GetInode(), a.GetType(), a.GetSealed()} }

// live returns a delegated directory in which the desk may work now, and its node. errPlain: it may
// not. errWait: not yet. The caller holds the mutex.
func (d *table) live(id uint64) (*dir, *node, error) {
	n := d.nodes[id]
	if n == nil || n.dir == nil || n.dir.state == dirEnding || d.times.seen == 0 {
		return nil, nil, errPlain
	}
	switch {
	case n.dir.under != d.Service.Standing():
		signal(d.tend)
		return nil, nil, errPlain
	case n.dir.state == dirLoading:
		return nil, nil, errWait
	case d.holds[id] > 0:
		return nil, nil, errHeld
	case n.dir.stale:
		d.load(n.dir, false)
		return nil, nil, errWait
	}
	d.used++
	n.dir.used = d.used
	return n.dir, n, nil
}

// isOld reports whether the service must say what the attributes of an inode are. The caller holds the
// mutex.
func (d *table) isOld(n *node) bool {
	if !n.old && !n.learned.IsZero() && d.Clock.Since(n.learned) >= learnedFor {
		d.markOld(n.attr.Inode)
	}
	return n.old
}

// put gives a directory an entry.
func (l *dir) put(name string, e entry) {
	if _, ok := l.names[name]; !ok {
		l.order = nil
	}
	l.names[name] = e
}

func (l *dir) remove(name string) {
	delete(l.names, name)
	l.order = nil
}

// after returns up to limit names that follow one, and whether there are others.
func (l *dir) after(name string, limit int) (names []string, more bool) {
	if l.order == nil {
		l.order = make([]string, 0, len(l.names))
		for name := range l.names {
			l.order = append(l.order, name)
		}
		slices.Sort(l.order)
	}
	first := sort.SearchStrings(l.order, name)
	if name != "" && first < len(l.order) && l.order[first] == name {
		first++
	}
	names = l.order[first:]
	if len(names) > limit {
		return names[:limit], true
	}
	return names, false
}

// change replaces the attributes of a node by changed ones.
func (n *node) change(do func(*wire.Attr)) {
	a := proto.Clone(n.attr).(*wire.Attr)
	do(a)
	n.attr = a
}

// touch sets the times of a directory whose names changed, and adds to its link count.
func (n *node) touch(at int64, links int) {
	n.change(func(a *wire.Attr) {
		a.Mtime, a.Ctime = at, at
		a.Nlink = uint32(int(a.Nlink) + links)
	})
}

// namesSince reports whether names in a directory changed after a change of its own: attributes that
// change later must not come before them.
func (n *node) namesSince(c *change) bool {
	return n.dir != nil && n.dir.last != nil && n.dir.last.seq > c.seq
}

// forget drops what the table knows of a directory that is no longer delegated. What was born in it
// is like any other inode from now on. The caller holds the mutex.
func (d *table) forget(l *dir) {
	shown := []uint64{l.id}
	for _, e := range l.names {
		n := d.nodes[e.inode]
		if n == nil || n.attr.Parent != l.id {
			continue
		}
		n.born = false
		if n.dir == nil {
			delete(d.nodes, e.inode)
			shown = append(shown, e.inode)
		}
	}
	if n := d.nodes[l.id]; n != nil && n.dir == l {
		delete(d.nodes, l.id)
	}
	delete(d.dirs, l.id)
	d.Service.Show(shown...)
}

// markOld records that a request to the service changed an inode, which nobody else has seen because of it.
// The caller holds the mutex.
func (d *table) markOld(inode uint64) {
	n := d.nodes[inode]
	switch {
	case n == nil:
	case n.dir != nil:
		n.dir.stale = true
	case !n.old:
		n.old = true
		d.Service.Show(inode)
	}
}

// disown makes an inode one like any other: the service knows it better from now on. The caller holds
// the mutex.
func (d *table) disown(inode uint64) {
	n := d.nodes[inode]
	if n == nil {
		return
	}
	n.born = false
	if n.dir != nil {
		n.dir.stale = true
		return
	}
	delete(d.nodes, inode)
	d.Service.Show(inode)
}
