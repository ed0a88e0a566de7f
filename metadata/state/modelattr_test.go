package state_test

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// modelAttr has the attributes that only a set-attributes request changes.
type modelAttr struct{ mode, uid, gid uint32 }

// attrOf takes the same attributes from the state's answer.
func attrOf(a *wire.Attr) modelAttr { return modelAttr{a.GetMode(), a.GetUid(), a.GetGid()} }

// stepAttr sets some attributes of a node.
func (m *model) stepAttr(c *client) {
	n := m.pick(func(n *modelNode) bool { return n.owner == nil || n.owner == c })
	op := &wire.SetAttr{Inode: n.id, Mode: uint32(m.rng.IntN(0o10000)), Uid: m.rng.Uint32N(4), Gid: m.rng.Uint32N(4),
		Atime: m.rng.Int64N(1 << 60), Mtime: m.rng.Int64N(1 << 60)}
	want := n.attr
	for _, f := range []struct {
		bit wire.SetAttrField
		set func()
	}{
		{wire.SetAttrField_SET_ATTR_MODE, func() { want.mode = op.Mode }},
		{wire.SetAttrField_SET_ATTR_UID, func() { want.uid = op.Uid }},
		{wire.SetAttrField_SET_ATTR_GID, func() { want.gid = op.Gid }},
		{wire.SetAttrField_SET_ATTR_ATIME, func() {}},
		{wire.SetAttrField_SET_ATTR_MTIME, func() {}},
	} {
		if m.rng.IntN(2) == 0 {
			op.Valid |= uint32(f.bit)
			f.set()
		}
	}
	before := c.attr(n.id)
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: op}})
	if n.owner != nil && n.owner != c {
		m.expect(resp, "permission denied", "attributes of another's file")
		return
	}
	m.expect(resp, "ok", "set attributes")
	n.attr = want
	a := c.attr(n.id)
	for _, time := range []struct {
		bit        wire.SetAttrField
		was, want  int64
		have       int64
		nameOfTime string
	}{
		{wire.SetAttrField_SET_ATTR_ATIME, before.Atime, op.Atime, a.Atime, "atime"},
		{wire.SetAttrField_SET_ATTR_MTIME, before.Mtime, op.Mtime, a.Mtime, "mtime"},
	} {
		if op.Valid&uint32(time.bit) == 0 {
			time.want = time.was
		}
		if time.have != time.want {
			m.t.Fatalf("%s of %x is %d, want %d", time.nameOfTime, n.id, time.have, time.want)
		}
	}
	if a.Ctime <= before.Ctime {
		m.t.Fatalf("ctime of %x went from %d to %d", n.id, before.Ctime, a.Ctime)
	}
	if a.Size != before.Size || a.Generation != before.Generation || attrOf(a) != want {
		m.t.Fatalf("setting %v made %v of %v", op, a, before)
	}
	m.compareLease(c, a)
}

// compareLease compares the lease named in an answer with the one that a client derives from the
// attributes.
func (m *model) compareLease(c *client, a *wire.Attr) {
	m.t.Helper()
	req := &wire.MetaRequest{Partition: m.partition, Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: a.Inode}}}
	resp, seen, err := m.m.ReadSeen(m.store(), &statepb.Caller{Node: c.node}, req, moraine.SessionID(c.id))
	if err != nil || len(seen.Touches) != 1 {
		m.t.Fatalf("a read of %x shows %v (%v)", a.Inode, seen, err)
	}
	got := resp.GetEntry().GetAttr()
	want := wire.LeaseOver(got.Inode, got.Parent, got.Type == wire.FileType_FILE_TYPE_DIRECTORY, got.ManyLinks)
	if have := uint64(seen.Touches[0].Lease); have != want {
		m.t.Fatalf("the attributes of %v are under the lease of %x, and look as under that of %x", got, have, want)
	}
}

// stepEndGrant ends a client's present grant, which other clients cannot do. The state then refuses
// its remaining numbers.
func (m *model) stepEndGrant(c *client) {
	if len(m.grants[c]) == 0 {
		m.number(c)
		if len(m.grants[c]) == 0 { // it was of one number
			return
		}
	}
	left := m.grants[c][0]
	end := func(by *client) *wire.MetaResponse {
		return m.mutate(by, &wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: left}}})
	}
	for _, other := range m.clients {
		if other != c {
			m.expect(end(other), "ok", "the end of another's grant, which it does not end")
		}
	}
	m.expect(end(c), "ok", "end of a grant")
	m.expect(end(c), "ok", "end of a grant that is over")
	delete(m.grants, c)
	if f := m.mayWrite(c); f != nil {
		op := &wire.Commit{Inode: f.id, Level: 3, Mode: wire.CommitMode_COMMIT_MODE_APPEND,
			Stripes: []*wire.Stripe{stripe(left, 5, m.devices()...)}, Extents: []*wire.Extent{extent(0, 5, left, 0)}}
		if resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: op}}); !overQuota(resp) {
			m.expect(resp, "stale", "a commit under a grant that is over")
		}
	}
}

// modelPolicy is a directory's own policy; zero fields are unset.
type modelPolicy struct {
	k, m  uint32
	flush wire.FlushPolicy
}

// stepPolicy sets a directory's policy, or takes it away.
func (m *model) stepPolicy(c *client) {
	dir := m.pick(isDir)
	p := modelPolicy{}
	if m.rng.IntN(3) > 0 {
		p.k, p.m = 1+m.rng.Uint32N(4), 1+m.rng.Uint32N(2)
	}
	if m.rng.IntN(2) == 0 {
		p.flush = wire.FlushPolicy(1 + m.rng.IntN(2))
	}
	op := &wire.SetPolicy{Inode: dir.id, Policy: &wire.Policy{Flush: p.flush}}
	if p.k > 0 {
		op.Policy.Scheme = &wire.Scheme{K: p.k, M: p.m}
	}
	m.expect(m.replicate(c, c.request(&wire.MetaRequest{Op: &wire.MetaRequest_SetPolicy{SetPolicy: op}})), "ok", "set policy")
	dir.policy = p
}

// effective is the policy below a directory: each field comes from the nearest directory upwards
// that sets it.
func (n *modelNode) effective() (p modelPolicy) {
	for ; n != nil; n = n.parent {
		if p.k == 0 {
			p.k, p.m = n.policy.k, n.policy.m
		}
		if p.flush == 0 {
			p.flush = n.policy.flush
		}
	}
	if p.flush == 0 {
		p.flush = wire.FlushPolicy_FLUSH_POLICY_NEVER
	}
	return p
}

// comparePolicies compares the policies of all directories with the state.
func (m *model) comparePolicies(c *client) {
	m.t.Helper()
	for _, n := range m.nodes {
		if !isDir(n) {
			continue
		}
		e := m.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetPolicy{GetPolicy: &wire.GetPolicy{Inode: n.id}}})).GetPolicy().GetEffective()
		have := modelPolicy{e.GetScheme().GetK(), e.GetScheme().GetM(), e.GetFlush()}
		if have.flush == 0 {
			have.flush = wire.FlushPolicy_FLUSH_POLICY_NEVER
		}
		if want := n.effective(); have != want {
			m.t.Fatalf("the policy of %x is %+v, want %+v", n.id, have, want)
		}
	}
}

// compareGroup checks that a new node has the group of a directory with the setgid bit, and that a
// new directory has the bit.
func (m *model) compareGroup(dir, n *modelNode, op *wire.Create) {
	m.t.Helper()
	const setgid = 0o2000
	inherits := dir.attr.mode&setgid != 0
	switch {
	case inherits && n.attr.gid != dir.attr.gid:
		m.t.Fatalf("%x has group %d in a setgid directory of group %d", n.id, n.attr.gid, dir.attr.gid)
	case inherits && isDir(n) && n.attr.mode&setgid == 0:
		m.t.Fatalf("directory %x has no setgid bit, but the directory above has", n.id)
	case !inherits && op.Type != wire.FileType_FILE_TYPE_SYMLINK && n.attr.mode != op.Mode:
		m.t.Fatalf("%x has mode %o, want %o", n.id, n.attr.mode, op.Mode)
	}
}
