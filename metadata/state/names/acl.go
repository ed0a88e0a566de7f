package names

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// Access control lists (ACLs) of POSIX.1e draft 17, as Linux keeps them. The kernel of a mount checks
// permissions by them. The rules that tie a list to its inode are here, in the entry of the change
// itself: no client ever sees a file without the list that it inherits, or a mode that differs from
// its list.
//
// A list is the value of an extended attribute in the form of Linux (acl_ea_header): a version, then
// 8 bytes for each entry, all little-endian. Entries are sorted by tag, and those of one tag by id.

// Tags of entries.
const (
	aclUserObj  = 0x01 // the owner
	aclUser     = 0x02
	aclGroupObj = 0x04 // the owning group
	aclGroup    = 0x08
	aclMask     = 0x10 // bounds all entries but those of the owner and of others
	aclOther    = 0x20
)

const (
	aclVersion  = 2
	aclHeader   = 4
	aclEntryLen = 8
	permClass   = 0o7 // read, write and execute of one class
	classBits   = 3
	permBits    = 0o777
)

// acl is a valid list. The entries with these tags exist, but for the mask.
type acl []aclEntry

type aclEntry struct {
	tag, perm uint16
	id        uint32
}

// decodeACL reads the value of an attribute.
func decodeACL(b []byte) (acl, error) {
	if len(b) < aclHeader || (len(b)-aclHeader)%aclEntryLen != 0 || binary.LittleEndian.Uint32(b) != aclVersion {
		return nil, kvtx.Fail(moraine.InvalidArgument, "set attribute", "", "%d bytes are no access control list of version %d", len(b), aclVersion)
	}
	var list acl
	for b = b[aclHeader:]; len(b) > 0; b = b[aclEntryLen:] {
		list = append(list, aclEntry{tag: binary.LittleEndian.Uint16(b), perm: binary.LittleEndian.Uint16(b[2:]), id: binary.LittleEndian.Uint32(b[4:])})
	}
	if !list.valid() {
		return nil, kvtx.Fail(moraine.InvalidArgument, "set attribute", "", "the access control list is not valid: its entries are incomplete, double or out of order")
	}
	return list, nil
}

// valid reports whether the list has its three basic entries, a mask if it names users or groups, and
// its entries in order.
func (list acl) valid() bool {
	var tags uint16
	named := false
	for n, e := range list {
		if e.perm&^permClass != 0 {
			return false
		}
		switch e.tag {
		case aclUser, aclGroup:
			named = true
		case aclUserObj, aclGroupObj, aclMask, aclOther:
			if tags&e.tag != 0 {
				return false
			}
		default:
			return false
		}
		if n > 0 && (e.tag < list[n-1].tag || e.tag == list[n-1].tag && e.id <= list[n-1].id) {
			return false
		}
		tags |= e.tag
	}
	const basic = aclUserObj | aclGroupObj | aclOther
	return tags&basic == basic && (!named || tags&aclMask != 0)
}

func (list acl) encode() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, aclHeader+aclEntryLen*len(list)), aclVersion)
	for _, e := range list {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// entry returns the entry of a tag that occurs once, nil if there is none.
func (list acl) entry(tag uint16) *aclEntry {
	for n := range list {
		if list[n].tag == tag {
			return &list[n]
		}
	}
	return nil
}

// groupClass is the entry that the group bits of a mode are: the mask, or the owning group's.
func (list acl) groupClass() *aclEntry {
	if mask := list.entry(aclMask); mask != nil {
		return mask
	}
	return list.entry(aclGroupObj)
}

// classes are the entries that the bits of a mode are, from the lowest on.
func (list acl) classes() [3]*aclEntry {
	return [3]*aclEntry{list.entry(aclOther), list.groupClass(), list.entry(aclUserObj)}
}

// mode returns mode with the permission bits of the list.
func (list acl) mode(mode uint32) uint32 {
	mode &^= permBits
	for n, e := range list.classes() {
		mode |= uint32(e.perm) << (n * classBits)
	}
	return mode
}

// setMode gives the list the permission bits of a mode.
func (list acl) setMode(mode uint32) {
	for n, e := range list.classes() {
		e.perm = uint16(mode>>(n*classBits)) & permClass
	}
}

// isMode reports whether the list says no more than a mode.
func (list acl) isMode() bool { return len(list) == 3 }

// storedACL reads a list of an inode, nil if it has none.
func storedACL(t *kvtx.Tx, i *record.Inode, name string) (acl, error) {
	if !i.Xattrs {
		return nil, nil
	}
	b, ok, err := t.Get(t.K.Xattr(i.Id, name))
	if err != nil || !ok {
		return nil, err
	}
	value, err := record.DecodeXattr(b)
	if err != nil {
		return nil, err
	}
	list, err := decodeACL(value)
	if err != nil {
		return nil, kvtx.Corrupt("access control list", i.Id.String(), "the attribute %s: %w", name, err)
	}
	return list, nil
}

// inheritACL gives an inode that is to be made in dir the mode and the lists that it inherits, and
// returns these. Where dir has no default list, umask clears bits of the mode instead.
func inheritACL(t *kvtx.Tx, n, dir *record.Inode, umask uint32) ([]*wire.Xattr, error) {
	if n.Typ == record.TypeSymlink {
		return nil, nil
	}
	list, err := storedACL(t, dir, moraine.DefaultACL)
	if err != nil {
		return nil, err
	}
	if list == nil {
		n.Mode &^= umask & permBits
		return nil, nil
	}
	var inherited []*wire.Xattr
	if n.Typ == record.TypeDirectory {
		inherited = append(inherited, &wire.Xattr{Name: moraine.DefaultACL, Value: list.encode()})
	}
	list.setMode(n.Mode & list.mode(0))
	n.Mode = list.mode(n.Mode)
	if !list.isMode() {
		inherited = append(inherited, &wire.Xattr{Name: moraine.AccessACL, Value: list.encode()})
	}
	return inherited, nil
}

// changeMode sets the mode of an inode, and the entries of its list that the mode has.
func changeMode(t *kvtx.Tx, i *record.Inode, mode uint32) error {
	i.Mode = mode
	list, err := storedACL(t, i, moraine.AccessACL)
	if err != nil || list == nil {
		return err
	}
	list.setMode(mode)
	t.Put(t.K.Xattr(i.Id, moraine.AccessACL), record.EncodeXattr(list.encode()))
	return nil
}

// applyACL checks a list that op sets, and gives the inode its mode. It returns false if nothing is
// left to store: the list says no more than the mode.
func applyACL(i *record.Inode, op *wire.SetXattr) (store bool, err error) {
	switch {
	case !moraine.IsACL(op.GetName()) || op.GetRemove():
		return true, nil
	case i.Typ == record.TypeSymlink:
		return false, kvtx.Fail(moraine.Unimplemented, "set attribute", op.GetName(), "a symbolic link has no access control list")
	case op.GetName() == moraine.DefaultACL && i.Typ != record.TypeDirectory:
		return false, kvtx.Fail(moraine.PermissionDenied, "set attribute", op.GetName(), "only a directory has a default access control list")
	}
	list, err := decodeACL(op.GetValue())
	if err != nil || op.GetName() == moraine.DefaultACL {
		return true, err
	}
	i.Mode = list.mode(i.Mode)
	if op.GetClearSetgid() {
		i.Mode &^= setgid
	}
	return !list.isMode(), nil
}

// CheckACL returns what is wrong with an attribute of an inode as its access control list; empty if
// nothing is, or it is another attribute.
func CheckACL(i *record.Inode, name string, value []byte) string {
	if !moraine.IsACL(name) {
		return ""
	}
	list, err := decodeACL(value)
	switch {
	case err != nil:
		return name + " is no valid access control list"
	case name == moraine.DefaultACL && i.Typ != record.TypeDirectory:
		return "has a default access control list, and is no directory"
	case name == moraine.AccessACL && list.isMode():
		return "has an access control list that says no more than its mode"
	case name == moraine.AccessACL && list.mode(i.Mode) != i.Mode:
		return "has another mode than its access control list"
	}
	return ""
}
