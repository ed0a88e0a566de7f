package ckpt

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// A rank that begins a step may announce how many bytes it will write at most. Until it seals, or the
// step ends, they count as used space of the run, so a quota refuses the rank before it copies a
// byte, and no other writer takes the space meanwhile. The leader compares the sum over all open
// steps with the free space of the devices.

// maxReserved bounds what one rank may announce, so that sums do not overflow.
const maxReserved = 1 << 50

// reserve changes what a part that is not sealed has announced.
func reserve(t *kvtx.Tx, s *record.Step, p *record.Part, bytes uint64) error {
	if bytes > maxReserved {
		return kvtx.Fail(moraine.TooLarge, "begin step", s.Id.String(), "the rank announces %d bytes, %d at most", bytes, uint64(maxReserved))
	}
	if bytes == p.Reserved {
		return nil
	}
	dir, err := tree.Inode(t, s.Dir)
	if err != nil {
		return kvtx.Damaged(err)
	}
	dir.Reserved += bytes - p.Reserved
	t.Count[record.CReserved] += bytes - p.Reserved
	p.Reserved = bytes
	tree.PutInode(t, dir)
	return nil
}

// ReservedBytes returns the bytes that the ranks of all open steps have announced and not sealed,
// apart from a rank that has begun before.
func ReservedBytes(v *kvtx.View, op *wire.BeginStep) (uint64, error) {
	c, err := v.Counters()
	if err != nil {
		return 0, err
	}
	p, err := PartRecord(v, stepFromWire(op.GetKey()), op.GetRank())
	if err != nil || p == nil {
		return c[record.CReserved], err
	}
	return c[record.CReserved] - p.Reserved, nil
}
