package delegation

import (
	"context"
	"errors"

	"github.com/morainefs/moraine/transport/wire"
)

// Attr returns the attributes of an inode that the desk knows better than the service. known is
// false if it does not. They are shared and must not be changed.
func (d *Desk) Attr(ctx context.Context, inode uint64) (a *wire.Attr, known bool, err error) {
	if d == nil || !d.engaged.Load() {
		return nil, false, nil
	}
	return d.look(ctx, func() (*wire.Attr, error) { return d.attrOf(inode) })
}

// look calls find, with the mutex held, until it need not wait.
func (d *Desk) look(ctx context.Context, find func() (*wire.Attr, error)) (a *wire.Attr, known bool, err error) {
	waited := d.until(ctx, func() bool {
		a, err = find()
		return !errors.Is(err, errWait)
	})
	if waited != nil {
		return nil, false, waited
	}
	return a, err == nil, nil
}

// attrOf is Attr. The caller holds the mutex.
func (d *table) attrOf(inode uint64) (*wire.Attr, error) {
	n := d.nodes[inode]
	switch {
	case n == nil || d.isOld(n):
		return nil, errPlain
	case d.holds[inode] > 0:
		return nil, errHeld
	case n.dir != nil:
		_, _, err := d.live(inode)
		return n.attr, err
	}
	_, _, err := d.live(n.attr.Parent)
	return n.attr, err
}

// Lookup returns what has a name in a delegated directory: its number, and its attributes if the desk
// knows them; 0: nothing has it. known is false if the service must say.
func (d *Desk) Lookup(ctx context.Context, parent uint64, name string) (inode uint64, a *wire.Attr, known bool, err error) {
	if d == nil || !d.engaged.Load() {
		return 0, nil, false, nil
	}
	a, known, err = d.look(ctx, func() (*wire.Attr, error) {
		l, _, err := d.live(parent)
		if err != nil {
			return nil, err
		}
		e, ok := l.names[name]
		if inode = e.inode; !ok {
			return nil, nil
		}
		a, err := d.attrOf(inode)
		if errors.Is(err, errPlain) || errors.Is(err, errHeld) {
			return nil, nil
		}
		return a, err
	})
	return inode, a, known, err
}

// Page returns a page of a delegated directory. known is false if the service must say. The entries are shared and must
// not be changed.
func (d *Desk) Page(ctx context.Context, inode uint64, after string, limit int) (r *wire.ReadDirReply, known bool, err error) {
	if d == nil || !d.engaged.Load() {
		return nil, false, nil
	}
	d.awaitListed(ctx, inode)
	_, known, err = d.look(ctx, func() (*wire.Attr, error) {
		l, _, err := d.live(inode)
		if err != nil {
			return nil, err
		}
		r = &wire.ReadDirReply{}
		names, more := l.after(after, limit)
		r.More = more
		for _, name := range names {
			a, err := d.attrOf(l.names[name].inode)
			if errors.Is(err, errPlain) {
				if a = d.Service.Attr(l.names[name].inode); a != nil {
					err = nil
				}
			}
			if err != nil {
				return nil, err
			}
			r.Entries = append(r.Entries, &wire.DirEntry{Name: name, Attr: a})
		}
		return nil, nil
	})
	return r, known, err
}

// HasNoXattrs reports whether an inode was born here, and has got no extended attributes since.
func (d *Desk) HasNoXattrs(inode uint64) bool {
	if d == nil || !d.engaged.Load() {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.nodes[inode]
	if n == nil || !n.born || n.xattrs {
		return false
	}
	a, err := d.attrOf(inode)
	return err == nil && !a.Xattrs
}
