package ckpt

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/retention"
	"github.com/morainefs/moraine/transport/wire"
)

// LevelPolicy says which steps belong to a level, and which of them stay there.
type LevelPolicy struct {
	Level moraine.Level // memory, nvme or object
	// The steps whose number Every divides belong to the level. 0: all steps for memory and nvme, and
	// for object only those that something else brings to the bucket. With Every of nvme above 1, the
	// other steps stay in memory, unless Every of object divides their number.
	Every uint64
	// A step stays while any of these keeps it; if none is set all steps of the level stay. A step
	// that no level keeps is removed. See docs/semantics/checkpoints.md.
	KeepLast  uint32        // so many newest good ones
	KeepEvery uint64        // those whose number it divides
	KeepFor   time.Duration // since the step was sealed; whole milliseconds count
	KeepBytes uint64        // the newest good ones that have so many bytes together
	KeepTags  []string      // 16 at most
}

// Policy is the policy of checkpoints of a directory: at most one rule for each level. If it has none,
// the policy of the directory above applies.
type Policy []LevelPolicy

// GetPolicy returns a directory's own policy of checkpoints, and the one in effect there.
func GetPolicy(ctx context.Context, c *client.Client, dir moraine.InodeID) (own, effective Policy, err error) {
	resp, err := getPolicy(ctx, overClient{c}, dir)
	if err != nil {
		return nil, nil, err
	}
	return policyOf(resp.GetOwn()), policyOf(resp.GetEffective()), nil
}

// SetPolicy makes a policy of checkpoints a directory's own; an empty one removes it. The other parts of the
// directory's policy stay. Two callers at the same time may undo each other's change.
func SetPolicy(ctx context.Context, c *client.Client, dir moraine.InodeID, p Policy) error {
	now, err := getPolicy(ctx, overClient{c}, dir)
	if err != nil {
		return err
	}
	own := now.GetOwn()
	if own == nil {
		own = &wire.Policy{}
	}
	if own.Checkpoint == nil {
		own.Checkpoint = &wire.CheckpointPolicy{}
	}
	own.Checkpoint.Levels = nil
	for _, l := range p {
		own.Checkpoint.Levels = append(own.Checkpoint.Levels, &wire.LevelPolicy{Level: uint32(l.Level), Every: l.Every, KeepLast: l.KeepLast,
			KeepEvery: l.KeepEvery, KeepMillis: uint64(l.KeepFor.Milliseconds()), KeepBytes: l.KeepBytes, KeepTags: l.KeepTags})
	}
	_, err = overClient{c}.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SetPolicy{SetPolicy: &wire.SetPolicy{Inode: uint64(dir), Policy: own}}})
	return err
}

func getPolicy(ctx context.Context, c cluster, dir moraine.InodeID) (*wire.PolicyReply, error) {
	resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetPolicy{GetPolicy: &wire.GetPolicy{Inode: uint64(dir)}}})
	return resp.GetPolicy(), err
}

func policyOf(w *wire.Policy) Policy {
	var p Policy
	for _, l := range w.GetCheckpoint().GetLevels() {
		p = append(p, LevelPolicy{Level: moraine.Level(l.GetLevel()), Every: l.GetEvery(), KeepLast: l.GetKeepLast(), KeepEvery: l.GetKeepEvery(),
			KeepFor: time.Duration(l.GetKeepMillis()) * time.Millisecond, KeepBytes: l.GetKeepBytes(), KeepTags: l.GetKeepTags()})
	}
	return p
}

// EndsAt returns the level at which a step ends that nobody brings further: memory if it stays there,
// object if the policy brings it to the bucket, and otherwise nvme. A step that is safer already stays
// as it is.
func (p Policy) EndsAt(s StepInfo) moraine.Level {
	switch {
	case retention.Selects(p.rules(), moraine.Object, s.Step) && s.Mark != MarkQuarantined:
		return moraine.Object
	case s.StaysInMemory:
		return max(s.Level, moraine.Memory)
	}
	return max(s.Level, moraine.NVMe)
}

// rules returns the policy as package retention has it.
func (p Policy) rules() []retention.Rule {
	rules := make([]retention.Rule, len(p))
	for n, l := range p {
		rules[n] = retention.Rule{Level: l.Level, Every: l.Every, KeepLast: l.KeepLast, KeepEvery: l.KeepEvery,
			KeepMillis: uint64(l.KeepFor.Milliseconds()), KeepBytes: l.KeepBytes, KeepTags: l.KeepTags}
	}
	return rules
}
