package tree

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// Policy returns a directory's own policy; a zero one if it has none.
func Policy(v *kvtx.View, dir *record.Inode) (p record.Policy, err error) {
	if !dir.Policy {
		return p, nil
	}
	b, ok, err := v.R.Get(v.K.Policy(dir.Id))
	if err == nil && !ok {
		err = kvtx.Corrupt("policy", dir.Id.String(), "the directory has a policy without a record")
	}
	if err != nil {
		return p, err
	}
	return p, p.Decode(b)
}

// Effective returns the policy in the directory at: each field comes from the nearest directory
// upwards that sets it. Parts of uploads, snapshots and the trash are flushed only if a directory among
// them sets that.
func Effective(v *kvtx.View, at moraine.InodeID) (record.Policy, error) {
	var p record.Policy
	for depth := 0; at != 0 && depth <= kvtx.MaxDepth && !p.Whole(); depth++ {
		dir, err := Ancestor(v, at)
		if err != nil {
			return record.Policy{}, err
		}
		own, err := Policy(v, dir)
		if err != nil {
			return record.Policy{}, err
		}
		p.Inherit(own)
		if moraine.IsReserved(dir.Name) {
			p.Inherit(record.Policy{Flush: wire.FlushPolicy_FLUSH_POLICY_NEVER})
		}
		at = dir.Parent
	}
	return p, nil
}
