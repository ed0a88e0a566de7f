package names

import (
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// MaxXattrs is the largest number of extended attributes of one inode.
	MaxXattrs = 256
	// MaxXattrBytes bounds the names and values of one inode's attributes together, in bytes.
	MaxXattrBytes = 64 << 10
)

func checkXattr(op *wire.SetXattr) error {
	name := op.GetName()
	switch {
	case name == "" || strings.IndexByte(name, 0) >= 0:
		return kvtx.Fail(moraine.InvalidArgument, "set attribute", name, "a name must not be empty or contain NUL")
	case len(name) > moraine.MaxNameLen:
		return kvtx.Fail(moraine.NameTooLong, "set attribute", name, "the name has %d bytes, %d at most", len(name), moraine.MaxNameLen)
	case strings.HasPrefix(name, "system.") && !moraine.IsACL(name):
		return kvtx.Fail(moraine.Unimplemented, "set attribute", name, "of the attributes of the system, the store has access control lists only")
	case len(op.GetValue()) > MaxXattrBytes:
		return kvtx.Fail(moraine.TooLarge, "set attribute", name, "the value has %d bytes, %d at most", len(op.GetValue()), MaxXattrBytes)
	}
	return nil
}

// checkXattrs checks the attributes of a new inode.
func checkXattrs(all []*wire.Xattr) error {
	for n, x := range all {
		if err := checkXattr(&wire.SetXattr{Name: x.GetName(), Value: x.GetValue()}); err != nil {
			return err
		}
		if moraine.IsACL(x.GetName()) {
			return kvtx.Fail(moraine.InvalidArgument, "set attribute", x.GetName(), "a create inherits access control lists: set others afterwards")
		}
		for _, before := range all[:n] {
			if before.GetName() == x.GetName() {
				return kvtx.Fail(moraine.InvalidArgument, "set attribute", x.GetName(), "the request sets the attribute twice")
			}
		}
	}
	return fitXattrs(all)
}

// fitXattrs checks that a new inode may have so many attributes.
func fitXattrs(all []*wire.Xattr) error {
	count, bytes := len(all), 0
	for n, x := range all {
		if bytes += len(x.GetName()) + len(x.GetValue()); n >= MaxXattrs || bytes > MaxXattrBytes {
			return kvtx.Fail(moraine.NoSpace, "set attribute", x.GetName(), "the file would have %d attributes with at least %d bytes; the limits are %d attributes and %d bytes",
				count, bytes, MaxXattrs, MaxXattrBytes)
		}
	}
	return nil
}

// putXattrs sets attributes, already checked by checkXattrs, on an inode that has none.
func putXattrs(t *kvtx.Tx, i *record.Inode, all []*wire.Xattr) {
	if len(all) == 0 {
		return
	}
	for _, x := range all {
		t.Put(t.K.Xattr(i.Id, x.GetName()), record.EncodeXattr(x.GetValue()))
	}
	i.Xattrs = true
	tree.PutInode(t, i)
}

// SetXattr sets or removes one extended attribute.
func SetXattr(t *kvtx.Tx, op *wire.SetXattr) (*wire.MetaResponse, error) {
	if err := checkXattr(op); err != nil {
		return nil, err
	}
	i, err := tree.Named(t, moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	if err := MayChange(t, "set attribute", i); err != nil {
		return nil, err
	}
	key := t.K.Xattr(i.Id, op.GetName())
	_, there, err := t.Get(key)
	switch {
	case err != nil:
		return nil, err
	case there && op.GetCreate():
		return nil, kvtx.Fail(moraine.Exists, "set attribute", op.GetName(), "")
	case !there && (op.GetReplace() || op.GetRemove()):
		return nil, kvtx.Fail(moraine.NoAttribute, "set attribute", op.GetName(), "")
	}
	store, err := applyACL(i, op)
	if err != nil {
		return nil, err
	}
	if op.GetRemove() || !store {
		t.Del(key)
	} else {
		t.Put(key, record.EncodeXattr(op.GetValue()))
	}
	count, bytes, err := xattrUse(&t.View, i)
	switch {
	case err != nil:
		return nil, err
	case !op.GetRemove() && (count > MaxXattrs || bytes > MaxXattrBytes):
		return nil, kvtx.Fail(moraine.NoSpace, "set attribute", op.GetName(), "the file would have %d attributes with %d bytes; the limits are %d attributes and %d bytes",
			count, bytes, MaxXattrs, MaxXattrBytes)
	}
	i.Xattrs = count > 0
	i.Ctime = t.Now
	tree.PutInode(t, i)
	return kvtx.Done(), nil
}

// xattrUse returns the number of an inode's extended attributes and the bytes of their names and
// values.
func xattrUse(v *kvtx.View, i *record.Inode) (count, bytes int, err error) {
	prefix := v.K.Xattrs(i.Id)
	err = v.EachIn(prefix, func(key, value []byte) (bool, error) {
		b, err := record.DecodeXattr(value)
		count, bytes = count+1, bytes+len(key)-len(prefix)+len(b)
		return true, err
	})
	return count, bytes, err
}

// ReadXattr answers one extended attribute or the names of all.
func ReadXattr(v *kvtx.View, sc kvtx.Scope, op *wire.GetXattr) (*wire.MetaResponse, error) {
	i, err := tree.ReadInode(v, moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	tree.SawAttr(v, i)
	if err := tree.Within(v, sc, i); err != nil {
		return nil, err
	}
	reply := &wire.XattrReply{}
	if op.GetName() != "" {
		b, ok, err := v.R.Get(v.K.Xattr(i.Id, op.GetName()))
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, kvtx.Fail(moraine.NoAttribute, "get attribute", op.GetName(), "")
		}
		if reply.Value, err = record.DecodeXattr(b); err != nil {
			return nil, err
		}
		return &wire.MetaResponse{Result: &wire.MetaResponse_Xattr{Xattr: reply}}, nil
	}
	if !i.Xattrs {
		return &wire.MetaResponse{Result: &wire.MetaResponse_Xattr{Xattr: reply}}, nil
	}
	prefix := v.K.Xattrs(i.Id)
	keys, err := v.KeysUnder(prefix, MaxXattrs)
	for _, key := range keys {
		reply.Names = append(reply.Names, string(key[len(prefix):]))
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Xattr{Xattr: reply}}, err
}
