package metadata

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// beginStep adds a rank to a checkpoint. A rank that announces more bytes than the devices have room
// for is refused with NoSpace, before it copies or sends a byte. What other ranks have announced
// counts as used.
func (l *leader) beginStep(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	if op := c.Req.GetBeginStep(); op.GetBytes() > 0 {
		if err := l.hasRoom(c, op); err != nil {
			return nil, err
		}
	}
	return l.Mutate(ctx, c)
}

func (l *leader) hasRoom(c *lead.Call, op *wire.BeginStep) error {
	scheme, _, err := l.policyScheme(c, moraine.InodeID(op.GetKey().GetRun()))
	if err != nil {
		return err
	}
	v := l.fleet.Topology.View()
	want, err := v.Request(scheme, 0, nil)
	if err != nil {
		return err
	}
	var reserved uint64
	err = l.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		reserved, err = ckpt.ReservedBytes(l.Machine.View(r), op)
		return err
	})
	if err != nil {
		return err
	}
	room := v.Place.Room() / uint64(want.Scheme.Chunks()) * uint64(want.Scheme.K)
	need := reserved + op.GetBytes()
	if need <= room {
		return nil
	}
	// What ranks have sent takes space of the devices by now, and is still announced. It counts once. Both
	// are of one moment: a rank that seals meanwhile is in neither.
	err = l.Store.View(func(r kvtx.Reader, _ uint64) error {
		now := l.Machine.View(r)
		if reserved, err = ckpt.ReservedBytes(now, op); err != nil {
			return err
		}
		sent, err := ckpt.SentBytes(now, op, need-room)
		need = reserved - min(sent, reserved) + op.GetBytes()
		return err
	})
	if err != nil {
		return err
	}
	if need > room {
		return &moraine.Error{Op: "begin step", Ref: fmt.Sprintf("step %d", op.GetKey().GetStep()), Kind: moraine.NoSpace, Err: fmt.Errorf(
			"the devices have room for %d bytes at %s, but this rank and others that save now need %d: remove old steps (moraine ckpt prune) or add devices",
			room, want.Scheme, need)}
	}
	return nil
}
