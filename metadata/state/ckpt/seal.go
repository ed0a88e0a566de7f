package ckpt

import (
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// removeFromStep decides on an unlink in a checkpoint's directory. The index makes a directory a
// checkpoint, and `rm -r` meets it first. Unlinking the index therefore removes the whole
// checkpoint, by the rules of RemoveStep; afterwards the other files may be unlinked. Any other
// unlink fails.
func removeFromStep(t *kvtx.Tx, dir, child *record.Inode) error {
	switch {
	case !dir.Sealed:
		return nil
	case !dir.CommittedStep():
		return tree.Immutable(t, dir)
	}
	s, err := tree.MustStep(&t.View, dir.Step)
	if err != nil {
		return err
	}
	if child.Id != s.Index {
		return tree.Immutable(t, child)
	}
	r, runDir, err := runInScope(&t.View, t.Scope, "remove step", s.Id.Run)
	if err != nil {
		return err
	}
	return takeAway(t, r, runDir, s, removal{emptied: true})
}

// removeStepTree removes the checkpoint whose directory a request removes as a tree.
func removeStepTree(t *kvtx.Tx, dir *record.Inode, force bool) (*wire.MetaResponse, error) {
	if !dir.CommittedStep() {
		return nil, tree.Immutable(t, dir)
	}
	id := dir.Step
	r, runDir, err := runInScope(&t.View, t.Scope, "remove step", id.Run)
	if err != nil {
		return nil, err
	}
	s, err := tree.MustStep(&t.View, id)
	if err != nil {
		return nil, err
	}
	return removeReply(dir), takeAway(t, r, runDir, s, removal{force: force})
}
