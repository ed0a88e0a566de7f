package usage

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// mayMoveTree fails if the command moves or removes a tree with committed checkpoints.
func mayMoveTree(t *kvtx.Tx, c *seatChange, what record.Usage) error {
	if what.Steps == c.before.own().Steps || t.OpenAll || t.Forced || c.before.typ != record.TypeDirectory {
		return nil
	}
	return HoldsSteps(c.id, what.Steps-c.before.own().Steps)
}

// HoldsSteps is the error for a directory with committed checkpoints below it.
func HoldsSteps(dir moraine.InodeID, n int64) error {
	return kvtx.Fail(moraine.Immutable, "change", dir.String(), "the directory has %d committed steps below it: remove them first (moraine ckpt rm), or give --checkpoints to moraine rm -r or moraine mv", n)
}
