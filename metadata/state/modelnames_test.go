package state_test

import (
	"slices"

	"github.com/morainefs/moraine/transport/wire"
)

func (m *model) stepCreate(c *client) {
	dir, name := m.pick(isDir), m.name()
	types := []wire.FileType{wire.FileType_FILE_TYPE_REGULAR, wire.FileType_FILE_TYPE_REGULAR, wire.FileType_FILE_TYPE_DIRECTORY, wire.FileType_FILE_TYPE_SYMLINK}
	op := &wire.Create{Parent: dir.id, Name: name, Type: types[m.rng.IntN(len(types))], Mode: 0o644, Exclusive: m.rng.IntN(2) == 0}
	if op.Type == wire.FileType_FILE_TYPE_SYMLINK && m.dice.IntN(2) == 0 {
		op.Type = wire.FileType_FILE_TYPE_FIFO + wire.FileType(m.dice.IntN(4))
	}
	if op.Type == wire.FileType_FILE_TYPE_SYMLINK {
		op.Target = "somewhere"
	}
	if op.Type >= wire.FileType_FILE_TYPE_CHAR_DEVICE {
		op.Rdev = m.dice.Uint32()
	}
	if m.dice.IntN(8) == 0 {
		op.Mode, op.Gid = op.Mode|0o2000, m.dice.Uint32N(3)
	}
	if op.Type == wire.FileType_FILE_TYPE_REGULAR && m.rng.IntN(3) == 0 {
		op.Name, op.Unlinked = "", true
	}
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: op}})
	have := dir.children[name]
	switch {
	case overQuota(resp):
	case op.Unlinked || have == nil:
		m.expect(resp, "ok", "create")
		n := &modelNode{id: resp.GetEntry().GetAttr().GetInode(), typ: op.Type, target: op.Target, rdev: op.Rdev, attr: attrOf(resp.GetEntry().GetAttr())}
		m.compareGroup(dir, n, op)
		if isDir(n) {
			n.children = map[string]*modelNode{}
		}
		if op.Unlinked {
			n.owner = c
		} else {
			n.parent, n.names, dir.children[name] = dir, 1, n
		}
		m.nodes = append(m.nodes, n)
	case op.Exclusive || op.Type >= wire.FileType_FILE_TYPE_SYMLINK:
		m.expect(resp, "already exists", "create over %v", have.typ)
	case isDir(have) && op.Type != have.typ:
		m.expect(resp, "is a directory", "create over a directory")
	case have.typ != op.Type:
		m.expect(resp, "already exists", "create over another type")
	default:
		m.expect(resp, "ok", "open")
		if resp.GetEntry().GetAttr().GetInode() != have.id {
			m.t.Fatalf("create found inode %x, want %x", resp.GetEntry().GetAttr().GetInode(), have.id)
		}
	}
}

// forget removes a node that lost a name from the model, with all below it, unless it has other
// names.
func (m *model) forget(n *modelNode) {
	for _, name := range slices.Sorted(mapKeys(n.children)) {
		m.forget(n.children[name])
	}
	if n.names--; n.names <= 0 {
		m.gone(n)
	}
}

// gone removes a node from the model.
func (m *model) gone(n *modelNode) {
	m.nodes = slices.DeleteFunc(m.nodes, func(o *modelNode) bool { return o == n })
}

func mapKeys[V any](mm map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range mm {
			if !yield(k) {
				return
			}
		}
	}
}

func below(n, top *modelNode) bool {
	for ; n != nil; n = n.parent {
		if n == top {
			return true
		}
	}
	return false
}

func (m *model) stepRename(c *client) {
	dir, newDir, name, newName := m.pick(isDir), m.pick(isDir), m.name(), m.name()
	op := &wire.Rename{Parent: dir.id, Name: name, NewParent: newDir.id, NewName: newName}
	op.NoReplace = m.rng.IntN(5) == 0
	op.Exchange = !op.NoReplace && m.rng.IntN(5) == 0
	op.Keep = m.rng.IntN(3) == 0 && !m.linkedAt(newDir, newName)
	if op.Whiteout = !op.Exchange && m.dice.IntN(6) == 0; op.Whiteout {
		op.Uid, op.Gid = 7, 8
	}
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: op}})
	from, to := dir.children[name], newDir.children[newName]
	switch {
	case overQuota(resp):
	case from == nil:
		m.expect(resp, "not found", "rename of nothing")
	case isDir(from) && below(newDir, from) && dir != newDir:
		m.expect(resp, "invalid argument", "rename below itself")
	case from == to:
		m.expect(resp, "ok", "rename onto itself")
	case to != nil && op.NoReplace:
		m.expect(resp, "already exists", "rename without replace")
	case op.Exchange && to == nil:
		m.expect(resp, "not found", "exchange with nothing")
	case op.Exchange && isDir(to) && below(dir, to) && dir != newDir:
		m.expect(resp, "invalid argument", "exchange below itself")
	case op.Exchange:
		m.expect(resp, "ok", "exchange")
		dir.children[name], newDir.children[newName] = to, from
		to.parent, from.parent = dir, newDir
	case to != nil && isDir(to) && !isDir(from):
		m.expect(resp, "is a directory", "rename of a file onto a directory")
	case to != nil && !isDir(to) && isDir(from):
		m.expect(resp, "not a directory", "rename of a directory onto a file")
	case to != nil && len(to.children) > 0:
		m.expect(resp, "directory not empty", "rename onto a directory")
	default:
		m.expect(resp, "ok", "rename")
		if to != nil {
			m.loseName(c, to, op.Keep)
		}
		delete(dir.children, name)
		newDir.children[newName], from.parent = from, newDir
		if op.Whiteout {
			n := &modelNode{id: c.inodeAt(dir.id, name), typ: wire.FileType_FILE_TYPE_CHAR_DEVICE, parent: dir, names: 1}
			if n.attr = attrOf(c.attr(n.id)); n.attr.mode != 0 || n.attr.uid != 7 {
				m.t.Fatalf("a whiteout has the attributes %v", n.attr)
			}
			dir.children[name], m.nodes = n, append(m.nodes, n)
		}
	}
}

func (m *model) stepRemove(c *client) {
	dir, name, asDir, keep := m.pick(isDir), m.name(), m.rng.IntN(3) == 0, m.rng.IntN(3) == 0
	keep = keep && !m.linkedAt(dir, name)
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: dir.id, Name: name, Directory: asDir, Keep: keep}}})
	n := dir.children[name]
	switch {
	case n == nil:
		m.expect(resp, "not found", "remove")
	case asDir && !isDir(n):
		m.expect(resp, "not a directory", "rmdir of a file")
	case !asDir && isDir(n):
		m.expect(resp, "is a directory", "unlink of a directory")
	case len(n.children) > 0:
		m.expect(resp, "directory not empty", "rmdir")
	default:
		m.expect(resp, "ok", "remove")
		delete(dir.children, name)
		m.loseName(c, n, keep)
	}
}

// loseName removes a name from a node. If it is the last name, the session may keep the node open.
func (m *model) loseName(c *client, n *modelNode, keep bool) {
	if keep && n.names == 1 && !isDir(n) {
		n.names, n.parent, n.owner = 0, nil, c
		return
	}
	m.forget(n)
}

// linkedAt reports whether a name's file has had several names. Whether the name is then the last
// one depends on jobs.
func (m *model) linkedAt(dir *modelNode, name string) bool {
	n := dir.children[name]
	return n != nil && n.linked
}

func (m *model) stepLink(c *client) {
	f := m.pick(func(n *modelNode) bool { return n != m.root })
	dir, name := m.pick(isDir), m.name()
	if f == nil {
		return
	}
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: f.id, Parent: dir.id, Name: name}}})
	switch {
	case overQuota(resp):
	case f.owner != nil && f.owner != c:
		m.expect(resp, "permission denied", "link of another's file")
	case isDir(f):
		m.expect(resp, "permission denied", "link of a directory")
	case dir.children[name] != nil:
		m.expect(resp, "already exists", "link over a name")
	default:
		m.expect(resp, "ok", "link")
		f.linked = f.linked || f.names > 0
		f.owner, f.names, dir.children[name] = nil, f.names+1, f
	}
}

func (m *model) stepRelease(c *client) {
	var ids []uint64
	for _, n := range slices.Clone(m.nodes) {
		if n.owner == nil || m.rng.IntN(2) == 0 {
			continue
		}
		ids = append(ids, n.id)
		if n.owner == c {
			m.gone(n)
		}
	}
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Release{Release: &wire.Release{Inodes: ids}}})
	m.expect(resp, "ok", "release")
}

func (m *model) stepXattr(c *client) {
	n := m.pick(func(n *modelNode) bool { return n.owner == nil || n.owner == c })
	op := &wire.SetXattr{Inode: n.id, Name: "user." + m.name(), Value: []byte(m.name()), Remove: m.rng.IntN(3) == 0}
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_SetXattr{SetXattr: op}})
	_, there := n.xattrs[op.Name]
	switch {
	case op.Remove && !there:
		m.expect(resp, "no such attribute", "remove of an attribute")
	case op.Remove:
		m.expect(resp, "ok", "remove of an attribute")
		delete(n.xattrs, op.Name)
	default:
		m.expect(resp, "ok", "set attribute")
		if n.xattrs == nil {
			n.xattrs = map[string]string{}
		}
		n.xattrs[op.Name] = string(op.Value)
	}
}

// compareXattrs compares a node's extended attributes with the state.
func (m *model) compareXattrs(c *client, n *modelNode) {
	m.t.Helper()
	names := m.ok(c.xattr(n.id, "")).GetXattr().GetNames()
	if !slices.Equal(names, slices.Sorted(mapKeys(n.xattrs))) {
		m.t.Fatalf("inode %x has attributes %q, want %q", n.id, names, n.xattrs)
	}
	for _, name := range names {
		if have := string(m.ok(c.xattr(n.id, name)).GetXattr().GetValue()); have != n.xattrs[name] {
			m.t.Fatalf("attribute %s of %x is %q, want %q", name, n.id, have, n.xattrs[name])
		}
	}
}

func (m *model) stepRemoveTree(c *client) {
	dir, name := m.pick(isDir), m.name()
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: dir.id, Name: name}}})
	switch n := dir.children[name]; {
	case n == nil:
		m.expect(resp, "not found", "remove tree")
	case !isDir(n):
		m.expect(resp, "not a directory", "remove tree of a file")
	default:
		m.expect(resp, "ok", "remove tree")
		delete(dir.children, name)
		m.forget(n)
	}
}
