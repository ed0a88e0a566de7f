package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// policy is what a directory wants of what is below it; a zero field is
// inherited.
type policy struct {
	flush   wire.FlushPolicy
	scheme  moraine.Scheme
	foreign wire.ForeignPolicy
}

const policyVersion = 1

func (p *policy) encode() []byte {
	return []byte{policyVersion, byte(p.flush), p.scheme.K, p.scheme.M, byte(p.foreign)}
}

func (p *policy) decode(b []byte) error {
	d := dec{b: b}
	d.version(policyVersion)
	p.flush = wire.FlushPolicy(d.byte())
	p.scheme = moraine.Scheme{K: d.byte(), M: d.byte()}
	p.foreign = wire.ForeignPolicy(d.byte())
	return d.end("policy")
}

func (p *policy) toWire() *wire.Policy {
	w := &wire.Policy{Flush: p.flush, Foreign: p.foreign}
	if p.scheme.K != 0 {
		w.Scheme = wire.SchemeToWire(p.scheme)
	}
	return w
}

// inherit fills what p leaves open from the directory above.
func (p *policy) inherit(from policy) {
	if p.flush == 0 {
		p.flush = from.flush
	}
	if p.scheme.K == 0 {
		p.scheme = from.scheme
	}
	if p.foreign == 0 {
		p.foreign = from.foreign
	}
}

func (p *policy) whole() bool { return p.flush != 0 && p.scheme.K != 0 && p.foreign != 0 }

// policy returns a directory's own policy; a zero one where it has none.
func (v *view) policy(dir *inode) (p policy, err error) {
	if !dir.policy {
		return p, nil
	}
	b, ok, err := v.r.Get(v.k.policy(dir.id))
	if err == nil && !ok {
		err = &moraine.Error{Op: "policy", Ref: dir.id.String(), Kind: moraine.Corrupt}
	}
	if err != nil {
		return p, err
	}
	return p, p.decode(b)
}

// effective returns the policy that governs what is in the directory at: of
// each field the nearest that says something, up to the root. The parts of
// uploads are flushed only where a directory among them says so.
func (v *view) effective(at moraine.InodeID) (policy, error) {
	var p policy
	for depth := 0; at != 0 && depth <= maxDepth && !p.whole(); depth++ {
		dir, err := v.inode(at)
		if err != nil {
			return policy{}, err
		}
		own, err := v.policy(dir)
		if err != nil {
			return policy{}, err
		}
		p.inherit(own)
		if dir.name == moraine.UploadsDir {
			p.inherit(policy{flush: wire.FlushPolicy_FLUSH_POLICY_NEVER})
		}
		at = dir.parent
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
	p := policy{flush: w.GetFlush(), foreign: w.GetForeign()}
	if p.foreign < 0 || p.foreign > wire.ForeignPolicy_FOREIGN_POLICY_OVERWRITE {
		return nil, fail(moraine.InvalidArgument, "set policy", dir.id.String(), "policy %d for foreign objects", p.foreign)
	}
	if p.flush < 0 || p.flush > wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT {
		return nil, fail(moraine.InvalidArgument, "set policy", dir.id.String(), "flush policy %d", p.flush)
	}
	if s := w.GetScheme(); s != nil {
		if s.GetK() == 0 || s.GetK() > moraine.MaxChunks || s.GetM() > moraine.MaxChunks || s.GetK()+s.GetM() > moraine.MaxChunks {
			return nil, fail(moraine.InvalidArgument, "set policy", dir.id.String(), "no scheme: k=%d m=%d", s.GetK(), s.GetM())
		}
		p.scheme = moraine.Scheme{K: uint8(s.GetK()), M: uint8(s.GetM())}
	}
	had := dir.policy
	if dir.policy = p != (policy{}); dir.policy {
		t.put(t.k.policy(dir.id), p.encode())
	} else {
		t.del(t.k.policy(dir.id))
	}
	switch {
	case dir.policy && !had:
		t.count[cPolicies]++
	case had && !dir.policy:
		t.count[cPolicies]--
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
func (v *view) policyReply(sc scope, i *inode) (*wire.MetaResponse, error) {
	own, err := v.policy(i)
	if err != nil {
		return nil, err
	}
	at := i.id
	if i.typ != typeDirectory {
		if at, err = v.parentIn(sc, i); err != nil {
			return nil, err
		}
	}
	p, err := v.effective(at)
	if err != nil {
		return nil, err
	}
	if p.flush == 0 {
		p.flush = wire.FlushPolicy_FLUSH_POLICY_NEVER
	}
	if p.foreign == 0 {
		p.foreign = wire.ForeignPolicy_FOREIGN_POLICY_REFUSE
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Policy{Policy: &wire.PolicyReply{Own: own.toWire(), Effective: p.toWire()}}}, nil
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
	if err != nil || n[cPolicies] == 0 {
		return moraine.Scheme{}, err
	}
	i, err := v.inode(id)
	if moraineKind(err) == moraine.NotFound {
		return moraine.Scheme{}, nil
	}
	if err != nil {
		return moraine.Scheme{}, err
	}
	at := i.id
	if i.typ != typeDirectory {
		if at, err = v.parentIn(sc, i); err != nil {
			return moraine.Scheme{}, err
		}
	}
	p, err := v.effective(at)
	return p.scheme, err
}

// flushOnCommit queues a flush of a file whose content changed, or which came to
// another place, where the policy there wants it.
func (m *Machine) flushOnCommit(t *tx, i *inode) error {
	if t.count[cPolicies] == 0 || i.typ != typeFile || i.nlink == 0 || i.clean() {
		return nil
	}
	p, err := t.effective(i.parent)
	if err != nil || p.flush != wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT {
		return err
	}
	_, err = m.queueFile(t, wire.JobKind_JOB_KIND_FLUSH, i, 0)
	return err
}

// flushTree is flushOnCommit for all that is below a directory.
func (m *Machine) flushTree(t *tx, dir *inode) error {
	if t.count[cPolicies] == 0 || dir.entries == 0 {
		return nil
	}
	p, err := t.effective(dir.id)
	if err != nil || p.flush != wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT {
		return err
	}
	_, err = m.queueTree(t, wire.JobKind_JOB_KIND_FLUSH, dir)
	return err
}

// flushMoved queues flushes for what a rename brought to another directory.
func (m *Machine) flushMoved(t *tx, i *inode) error {
	if i.typ == typeDirectory {
		return m.flushTree(t, i)
	}
	return m.flushOnCommit(t, i)
}
