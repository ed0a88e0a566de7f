package ckpt

import (
	"encoding/binary"

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
		return kvtx.Fail(moraine.InvalidArgument, "begin step", s.Id.String(), "the rank announces %d bytes, %d at most", bytes, uint64(maxReserved))
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

// sentSoFar reads how many bytes sessions have in files that have no name yet.
type sentSoFar struct {
	v    *kvtx.View
	by   map[moraine.SessionID]uint64
	left int // files that it may still look at
}

// of returns the bytes of a session, or those of the first files of many.
func (s *sentSoFar) of(session moraine.SessionID) (uint64, error) {
	if n, known := s.by[session]; known {
		return n, nil
	}
	var n uint64
	err := s.v.EachIn(s.v.K.SessionInodes(session), func(key, _ []byte) (bool, error) {
		i, err := tree.ReadInode(s.v, moraine.InodeID(binary.BigEndian.Uint64(key[len(key)-8:])))
		if err != nil {
			return false, err
		}
		n += uint64(i.Size)
		s.left--
		return s.left > 0, nil
	})
	s.by[session] = n
	return n, err
}

// maxSentLook bounds the ranks at which SentBytes looks, and the files of sentSoFar.
const maxSentLook = 4096

// SentBytes returns how much of what ReservedBytes counts is on devices already: the ranks that have
// announced it have committed it to files that have no name yet. It stops once it has found enough,
// and after maxSentLook ranks. A session that has other files without a name besides, such as open ones that
// were removed, counts with them: then it finds too much, at most what the session has announced.
func SentBytes(v *kvtx.View, op *wire.BeginStep, enough uint64) (sent uint64, err error) {
	reserved := map[moraine.SessionID]uint64{}
	self, looked := v.K.Part(stepFromWire(op.GetKey()), op.GetRank()), 0
	err = v.EachIn(v.K.Table(record.TabOpenStep), func(key, _ []byte) (bool, error) {
		err := v.EachIn(v.K.Parts(StepOfKey(key)), func(key, value []byte) (bool, error) {
			var p record.Part
			if err := p.Decode(value); err != nil {
				return false, err
			}
			if looked++; p.Reserved > 0 && string(key) != string(self) {
				reserved[p.Session] += p.Reserved
			}
			return looked < maxSentLook, nil
		})
		return err == nil && looked < maxSentLook, err
	})
	for session, most := range reserved {
		if err != nil || sent >= enough {
			return sent, err
		}
		var have uint64
		err = v.EachIn(v.K.SessionInodes(session), func(key, _ []byte) (bool, error) {
			i, err := tree.ReadInode(v, moraine.InodeID(binary.BigEndian.Uint64(key[len(key)-8:])))
			if err != nil {
				return false, err
			}
			have += uint64(i.Size)
			return have < most, nil
		})
		sent += min(have, most)
	}
	return sent, err
}
