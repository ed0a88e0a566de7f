package names

import (
	"cmp"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// SetPolicy sets or removes a directory's own policy.
func SetPolicy(t *kvtx.Tx, op *wire.SetPolicy) (*wire.MetaResponse, error) {
	dir, err := tree.Directory(t, moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	w := op.GetPolicy()
	p := record.Policy{Flush: w.GetFlush(), Foreign: w.GetForeign(), TrashMillis: w.GetTrashMillis()}
	if m := p.TrashMillis; m > tree.TrashOff && (m < minTrashMillis || m > maxTrashMillis) {
		return nil, kvtx.Fail(moraine.InvalidArgument, "set policy", dir.Id.String(), "a trash keeps files for %d ms at least and %d ms at most, not %d", minTrashMillis, uint64(maxTrashMillis), m)
	}
	if p.Foreign < 0 || p.Foreign > wire.ForeignPolicy_FOREIGN_POLICY_OVERWRITE {
		return nil, kvtx.Fail(moraine.InvalidArgument, "set policy", dir.Id.String(), "policy %d for foreign objects is unknown", p.Foreign)
	}
	if p.Flush < 0 || p.Flush > wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT {
		return nil, kvtx.Fail(moraine.InvalidArgument, "set policy", dir.Id.String(), "flush policy %d is unknown", p.Flush)
	}
	if s := w.GetScheme(); s != nil {
		if s.GetK() == 0 || s.GetK() > moraine.MaxChunks || s.GetM() > moraine.MaxChunks || s.GetK()+s.GetM() > moraine.MaxChunks {
			return nil, kvtx.Fail(moraine.InvalidArgument, "set policy", dir.Id.String(), "scheme %d+%d is invalid: K is at least 1, and K+M at most %d", s.GetK(), s.GetM(), moraine.MaxChunks)
		}
		p.Scheme = moraine.Scheme{K: uint8(s.GetK()), M: uint8(s.GetM())}
	}
	if err := checkpointPolicy(&p, dir, w.GetCheckpoint()); err != nil {
		return nil, err
	}
	if p.TrashMillis > tree.TrashOff { // a directory that gets a trash is not delegated
		if err := tree.MeetAll(&t.View); err != nil {
			return nil, err
		}
	}
	had := dir.Policy
	if dir.Policy = !p.Zero(); dir.Policy {
		t.Put(t.K.Policy(dir.Id), p.Encode())
	} else {
		t.Del(t.K.Policy(dir.Id))
	}
	switch {
	case dir.Policy && !had:
		t.Count[record.CPolicies]++
	case had && !dir.Policy:
		t.Count[record.CPolicies]--
	}
	tree.PutInode(t, dir)
	return policyReply(&t.View, t.Scope, dir)
}

// ReadPolicy answers the policy that applies to an inode in the caller's scope.
func ReadPolicy(v *kvtx.View, sc kvtx.Scope, op *wire.GetPolicy) (*wire.MetaResponse, error) {
	i, err := tree.ReadNamed(v, sc, moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	return policyReply(v, sc, i)
}

// policyReply answers a directory's policy; a file has its directory's.
func policyReply(v *kvtx.View, sc kvtx.Scope, i *record.Inode) (*wire.MetaResponse, error) {
	own, err := tree.Policy(v, i)
	if err != nil {
		return nil, err
	}
	at := i.Id
	if i.Typ != record.TypeDirectory {
		if at, err = tree.ParentIn(v, sc, i); err != nil {
			return nil, err
		}
	}
	p, err := tree.Effective(v, at)
	if err != nil {
		return nil, err
	}
	p.Flush = cmp.Or(p.Flush, wire.FlushPolicy_FLUSH_POLICY_NEVER)
	p.Foreign = cmp.Or(p.Foreign, wire.ForeignPolicy_FOREIGN_POLICY_REFUSE)
	p.TrashMillis = cmp.Or(p.TrashMillis, tree.TrashOff)
	return &wire.MetaResponse{Result: &wire.MetaResponse_Policy{Policy: &wire.PolicyReply{Own: own.ToWire(), Effective: p.ToWire()}}}, nil
}

// PolicyScheme returns the scheme that a directory's policy sets for new stripes; zero if no policy
// sets one, or the directory is unknown.
func PolicyScheme(r *kvtx.View, dir moraine.InodeID) (moraine.Scheme, error) {
	return policyScheme(r, kvtx.Scope{}, dir)
}

// PolicySchemeFor is PolicyScheme for an inode that a caller names, where a file has its
// directory's policy. A place outside the caller's scope has no policy.
func PolicySchemeFor(v *kvtx.View, caller *statepb.Caller, session moraine.SessionID, id moraine.InodeID) (moraine.Scheme, error) {
	sc, err := ReadScope(v, caller, session)
	if kvtx.IsAnswer(err) {
		return moraine.Scheme{}, nil // the request itself will fail the same way
	}
	if err != nil {
		return moraine.Scheme{}, err
	}
	if may, err := tree.MayName(v, sc, id); err != nil || !may {
		return moraine.Scheme{}, err
	}
	return policyScheme(v, sc, id)
}

func policyScheme(v *kvtx.View, sc kvtx.Scope, id moraine.InodeID) (moraine.Scheme, error) {
	n, err := v.Counters()
	if err != nil || n[record.CPolicies] == 0 {
		return moraine.Scheme{}, err
	}
	i, err := tree.ReadInode(v, id)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return moraine.Scheme{}, nil
	}
	if err != nil {
		return moraine.Scheme{}, err
	}
	at := i.Id
	if i.Typ != record.TypeDirectory {
		if at, err = tree.ParentIn(v, sc, i); err != nil {
			return moraine.Scheme{}, err
		}
	}
	p, err := tree.Effective(v, at)
	return p.Scheme, err
}

// FlushOnCommit queues what the policy there requires for a file with new content or a new place: a
// flush of it, and the adoption of the directory that it completes.
func FlushOnCommit(t *kvtx.Tx, i *record.Inode) error {
	if err := adoptComplete(t, i); err != nil {
		return err
	}
	if t.Count[record.CPolicies] == 0 || i.Typ != record.TypeFile || i.Nlink == 0 || i.Clean() {
		return nil
	}
	p, err := tree.Effective(&t.View, i.Parent)
	if err != nil || p.Flush != wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT {
		return err
	}
	_, err = tier.QueueFile(t, wire.JobKind_JOB_KIND_FLUSH, i, 0)
	return err
}

// FlushTree is FlushOnCommit for everything below a directory.
func FlushTree(t *kvtx.Tx, dir *record.Inode) error {
	if t.Count[record.CPolicies] == 0 || dir.Entries == 0 {
		return nil
	}
	p, err := tree.Effective(&t.View, dir.Id)
	if err != nil || p.Flush != wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT {
		return err
	}
	_, err = tier.QueueTree(t, wire.JobKind_JOB_KIND_FLUSH, dir)
	return err
}

// flushMoved queues flushes for what a rename moved to another directory.
func flushMoved(t *kvtx.Tx, i *record.Inode) error {
	if i.Typ == record.TypeDirectory {
		if err := adoptRenamed(t, i); err != nil {
			return err
		}
		return FlushTree(t, i)
	}
	return FlushOnCommit(t, i)
}
