package state

import (
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// MaxXattrs is the most extended attributes of one inode.
	MaxXattrs = 256
	// MaxXattrBytes bounds their names and values together, and so each value.
	MaxXattrBytes = 64 << 10
)

func checkXattr(op *wire.SetXattr) error {
	name := op.GetName()
	switch {
	case name == "" || strings.IndexByte(name, 0) >= 0:
		return fail(moraine.InvalidArgument, "set attribute", name, "not a name")
	case len(name) > moraine.MaxNameLen:
		return fail(moraine.NameTooLong, "set attribute", name, "%d bytes, %d at most", len(name), moraine.MaxNameLen)
	case strings.HasPrefix(name, "system."):
		return fail(moraine.Unimplemented, "set attribute", name, "access lists are not kept")
	case len(op.GetValue()) > MaxXattrBytes:
		return fail(moraine.TooLarge, "set attribute", name, "%d bytes, %d at most", len(op.GetValue()), MaxXattrBytes)
	}
	return nil
}

// checkXattrs checks the attributes of something new.
func checkXattrs(all []*wire.Xattr) error {
	count, bytes := len(all), 0
	for n, x := range all {
		if err := checkXattr(&wire.SetXattr{Name: x.GetName(), Value: x.GetValue()}); err != nil {
			return err
		}
		for _, before := range all[:n] {
			if before.GetName() == x.GetName() {
				return fail(moraine.InvalidArgument, "set attribute", x.GetName(), "it is set twice")
			}
		}
		if bytes += len(x.GetName()) + len(x.GetValue()); n >= MaxXattrs || bytes > MaxXattrBytes {
			return fail(moraine.NoSpace, "set attribute", x.GetName(), "%d attributes of %d bytes or more in all; %d and %d at most",
				count, bytes, MaxXattrs, MaxXattrBytes)
		}
	}
	return nil
}

// putXattrs sets attributes that checkXattrs passed on an inode that has none.
func (t *tx) putXattrs(i *record.Inode, all []*wire.Xattr) {
	if len(all) == 0 {
		return
	}
	for _, x := range all {
		t.put(t.k.xattr(i.Id, x.GetName()), record.EncodeXattr(x.GetValue()))
	}
	i.Xattrs = true
	t.putInode(i)
}

// setXattr sets or removes one extended attribute.
func (m *Machine) setXattr(t *tx, op *wire.SetXattr) (*wire.MetaResponse, error) {
	if err := checkXattr(op); err != nil {
		return nil, err
	}
	i, err := t.named(moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	if err := t.mayChange("set attribute", i); err != nil {
		return nil, err
	}
	key := t.k.xattr(i.Id, op.GetName())
	_, there, err := t.Get(key)
	switch {
	case err != nil:
		return nil, err
	case there && op.GetCreate():
		return nil, fail(moraine.Exists, "set attribute", op.GetName(), "")
	case !there && (op.GetReplace() || op.GetRemove()):
		return nil, fail(moraine.NoAttribute, "set attribute", op.GetName(), "")
	}
	if op.GetRemove() {
		t.del(key)
	} else {
		t.put(key, record.EncodeXattr(op.GetValue()))
	}
	count, bytes, err := t.xattrUse(i)
	switch {
	case err != nil:
		return nil, err
	case !op.GetRemove() && (count > MaxXattrs || bytes > MaxXattrBytes):
		return nil, fail(moraine.NoSpace, "set attribute", op.GetName(), "%d attributes of %d bytes in all; %d and %d at most",
			count, bytes, MaxXattrs, MaxXattrBytes)
	}
	i.Xattrs = count > 0
	i.Ctime = t.now
	t.putInode(i)
	return done(), nil
}

// xattrUse returns how many extended attributes an inode has, and how many
// bytes their names and values are.
func (v *view) xattrUse(i *record.Inode) (count, bytes int, err error) {
	var bad error
	prefix := v.k.xattrs(i.Id)
	err = v.r.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		var b []byte
		b, bad = record.DecodeXattr(value)
		count, bytes = count+1, bytes+len(key)-len(prefix)+len(b)
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	return count, bytes, err
}

// readXattr answers one extended attribute, or the names of all.
func (v *view) readXattr(sc scope, op *wire.GetXattr) (*wire.MetaResponse, error) {
	i, err := v.inode(moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	v.sawAttr(i)
	if err := v.within(sc, i); err != nil {
		return nil, err
	}
	reply := &wire.XattrReply{}
	if op.GetName() != "" {
		b, ok, err := v.r.Get(v.k.xattr(i.Id, op.GetName()))
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fail(moraine.NoAttribute, "get attribute", op.GetName(), "")
		}
		if reply.Value, err = record.DecodeXattr(b); err != nil {
			return nil, err
		}
		return &wire.MetaResponse{Result: &wire.MetaResponse_Xattr{Xattr: reply}}, nil
	}
	if !i.Xattrs {
		return &wire.MetaResponse{Result: &wire.MetaResponse_Xattr{Xattr: reply}}, nil
	}
	prefix := v.k.xattrs(i.Id)
	keys, err := v.keysUnder(prefix, MaxXattrs)
	for _, key := range keys {
		reply.Names = append(reply.Names, string(key[len(prefix):]))
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Xattr{Xattr: reply}}, err
}
