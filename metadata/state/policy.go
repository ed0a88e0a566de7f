package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// policy returns a directory's own policy; a zero one where it has none.
func (v *view) policy(dir *record.Inode) (p record.Policy, err error) {
	if !dir.Policy {
		return p, nil
	}
	b, ok, err := v.r.Get(v.k.policy(dir.Id))
	if err == nil && !ok {
		err = &moraine.Error{Op: "policy", Ref: dir.Id.String(), Kind: moraine.Corrupt}
	}
	if err != nil {
		return p, err
	}
	return p, p.Decode(b)
}

// effective returns the policy that governs what is in the directory at: of
// each field the nearest that says something, up to the root. The parts of
// uploads are flushed only where a directory among them says so.
func (v *view) effective(at moraine.InodeID) (record.Policy, error) {
	var p record.Policy
	for depth := 0; at != 0 && depth <= maxDepth && !p.Whole(); depth++ {
		dir, err := v.inode(at)
		if err != nil {
			return record.Policy{}, err
		}
		own, err := v.policy(dir)
		if err != nil {
			return record.Policy{}, err
		}
		p.Inherit(own)
		if dir.Name == moraine.UploadsDir {
			p.Inherit(record.Policy{Flush: wire.FlushPolicy_FLUSH_POLICY_NEVER})
		}
		at = dir.Parent
	}
	return p, nil
}

// setPolicy gives a directory a policy of its own, or takes it away.
func (m *Machine) setPolicy(t *tx, op *wire.SetPolicy) (*wire.MetaResponse, error) {
	dir, err := t.directory(moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	w := op.GetPolicy()
	p := record.Policy{Flush: w.GetFlush(), Foreign: w.GetForeign()}
	if p.Foreign < 0 || p.Foreign > wire.ForeignPolicy_FOREIGN_POLICY_OVERWRITE {
		return nil, fail(moraine.InvalidArgument, "set policy", dir.Id.String(), "policy %d for foreign objects", p.Foreign)
	}
	if p.Flush < 0 || p.Flush > wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT {
		return nil, fail(moraine.InvalidArgument, "set policy", dir.Id.String(), "flush policy %d", p.Flush)
	}
	if s := w.GetScheme(); s != nil {
		if s.GetK() == 0 || s.GetK() > moraine.MaxChunks || s.GetM() > moraine.MaxChunks || s.GetK()+s.GetM() > moraine.MaxChunks {
			return nil, fail(moraine.InvalidArgument, "set policy", dir.Id.String(), "no scheme: k=%d m=%d", s.GetK(), s.GetM())
		}
		p.Scheme = moraine.Scheme{K: uint8(s.GetK()), M: uint8(s.GetM())}
	}
	had := dir.Policy
	if dir.Policy = p != (record.Policy{}); dir.Policy {
		t.put(t.k.policy(dir.Id), p.Encode())
	} else {
		t.del(t.k.policy(dir.Id))
	}
	switch {
	case dir.Policy && !had:
		t.count[record.CPolicies]++
	case had && !dir.Policy:
		t.count[record.CPolicies]--
	}
	t.putInode(dir)
	return t.policyReply(t.scope, dir)
}

func (v *view) readPolicy(sc scope, op *wire.GetPolicy) (*wire.MetaResponse, error) {
	i, err := v.named(sc, moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	return v.policyReply(sc, i)
}

// policyReply answers a directory's policy; a file's is its directory's.
func (v *view) policyReply(sc scope, i *record.Inode) (*wire.MetaResponse, error) {
	own, err := v.policy(i)
	if err != nil {
		return nil, err
	}
	at := i.Id
	if i.Typ != record.TypeDirectory {
		if at, err = v.parentIn(sc, i); err != nil {
			return nil, err
		}
	}
	p, err := v.effective(at)
	if err != nil {
		return nil, err
	}
	if p.Flush == 0 {
		p.Flush = wire.FlushPolicy_FLUSH_POLICY_NEVER
	}
	if p.Foreign == 0 {
		p.Foreign = wire.ForeignPolicy_FOREIGN_POLICY_REFUSE
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Policy{Policy: &wire.PolicyReply{Own: own.ToWire(), Effective: p.ToWire()}}}, nil
}

// PolicyScheme returns the scheme that the policy of a directory sets for new stripes; zero
// where none does. An unknown one has no policy.
func (m *Machine) PolicyScheme(r Reader, dir moraine.InodeID) (moraine.Scheme, error) {
	return m.view(r).policyScheme(scope{}, dir)
}

// PolicySchemeFor is PolicyScheme of a directory, or of that of a file, as a caller sees it:
// a place that the caller may not name has no policy.
func (m *Machine) PolicySchemeFor(r Reader, caller *statepb.Caller, session moraine.SessionID, id moraine.InodeID) (moraine.Scheme, error) {
	v := m.view(r)
	sc, err := v.readScope(caller, session)
	if isAnswer(err) {
		return moraine.Scheme{}, nil // as it fails, so will the request
	}
	if err != nil {
		return moraine.Scheme{}, err
	}
	if may, err := v.mayName(sc, id); err != nil || !may {
		return moraine.Scheme{}, err
	}
	return v.policyScheme(sc, id)
}

func (v *view) policyScheme(sc scope, id moraine.InodeID) (moraine.Scheme, error) {
	n, err := v.counters()
	if err != nil || n[record.CPolicies] == 0 {
		return moraine.Scheme{}, err
	}
	i, err := v.inode(id)
	if moraineKind(err) == moraine.NotFound {
		return moraine.Scheme{}, nil
	}
	if err != nil {
		return moraine.Scheme{}, err
	}
	at := i.Id
	if i.Typ != record.TypeDirectory {
		if at, err = v.parentIn(sc, i); err != nil {
			return moraine.Scheme{}, err
		}
	}
	p, err := v.effective(at)
	return p.Scheme, err
}

// flushOnCommit queues a flush of a file whose content changed, or which came to
// another place, where the policy there wants it.
func (m *Machine) flushOnCommit(t *tx, i *record.Inode) error {
	if t.count[record.CPolicies] == 0 || i.Typ != record.TypeFile || i.Nlink == 0 || i.Clean() {
		return nil
	}
	p, err := t.effective(i.Parent)
	if err != nil || p.Flush != wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT {
		return err
	}
	_, err = m.queueFile(t, wire.JobKind_JOB_KIND_FLUSH, i, 0)
	return err
}

// flushTree is flushOnCommit for all that is below a directory.
func (m *Machine) flushTree(t *tx, dir *record.Inode) error {
	if t.count[record.CPolicies] == 0 || dir.Entries == 0 {
		return nil
	}
	p, err := t.effective(dir.Id)
	if err != nil || p.Flush != wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT {
		return err
	}
	_, err = m.queueTree(t, wire.JobKind_JOB_KIND_FLUSH, dir)
	return err
}

// flushMoved queues flushes for what a rename brought to another directory.
func (m *Machine) flushMoved(t *tx, i *record.Inode) error {
	if i.Typ == record.TypeDirectory {
		return m.flushTree(t, i)
	}
	return m.flushOnCommit(t, i)
}
