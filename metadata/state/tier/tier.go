package tier

import (
	"encoding/binary"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// maxReadSums is the largest number of checksums that one GetObject returns.
const maxReadSums = 4096

// BeU64 decodes a number in a key.
func BeU64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

// ReadObject answers an object's record and checksums of its pieces. A confined session sees
// objects of its tenant.
func ReadObject(v *kvtx.View, sc kvtx.Scope, op *wire.GetObject) (*wire.MetaResponse, error) {
	id := moraine.ObjectID(op.GetObject())
	o, err := layout.Object(v, id)
	if err != nil {
		return nil, err
	}
	if o == nil {
		return nil, kvtx.Fail(moraine.NotFound, "get object", id.String(), "")
	}
	if sc.Root != v.K.Top() {
		// The key is a path, so only a caller that may name the file may see it.
		if _, err := tree.ReadNamed(v, sc, o.Inode); kvtx.MoraineKind(err) == moraine.NotFound {
			return nil, kvtx.Fail(moraine.NotFound, "get object", id.String(), "")
		} else if err != nil {
			return nil, err
		}
	}
	reply := &wire.ObjectReply{Object: o.ToWire()}
	first, left := op.GetFirstSum(), uint64(min(op.GetSums(), maxReadSums))
	for left > 0 && first < o.Pieces() {
		sums, err := layout.Sums(v, id, first/record.SumsPerBlock)
		if err != nil {
			return nil, err
		}
		at := first % record.SumsPerBlock
		if at >= uint64(len(sums)) {
			break
		}
		sums = sums[at:min(uint64(len(sums)), at+left)]
		reply.Sums = append(reply.Sums, sums...)
		first, left = first+uint64(len(sums)), left-uint64(len(sums))
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Object{Object: reply}}, nil
}

// maxStuckLook bounds the jobs that a search for a stuck one inspects.
const maxStuckLook = 10_000

// stuckMove returns the oldest stuck job. It is nil if none of the first maxStuckLook jobs is stuck.
func stuckMove(v *kvtx.View) (found *record.Job, err error) {
	looked := 0
	err = v.EachIn(v.K.Table(record.TabJob), func(key, value []byte) (bool, error) {
		j := &record.Job{Id: moraine.JobID(record.LastU64(key))}
		if err := j.Decode(value); err != nil {
			return false, err
		}
		if j.Stuck() {
			found = j
		}
		looked++
		return found == nil && looked < maxStuckLook, nil
	})
	return found, err
}

// ReadTier describes the object tier as a whole.
func ReadTier(v *kvtx.View) (*wire.MetaResponse, error) {
	n, err := v.Counters()
	if err != nil {
		return nil, err
	}
	reply := &wire.TierReply{
		Objects: n[record.CObjects], Bytes: n[record.CObjectBytes], QueuedFlushes: n[record.CFlushes], QueuedStages: n[record.CStages],
		QueuedEvictions: n[record.CEvictions], QueuedDeletions: n[record.CDeletions], Intents: n[record.CObjectIntents], UnsettledKeys: n[record.CUnsettled],
		Stuck: n[record.CStuckMoves],
	}
	if reply.Stuck > 0 {
		j, err := stuckMove(v)
		if err != nil {
			return nil, err
		}
		if j != nil {
			reply.StuckJob, reply.StuckSubject, reply.StuckError = uint64(j.Id), j.Subject, j.Err
		}
	}
	err = v.EachIn(v.K.Table(record.TabHost), func(_, value []byte) (bool, error) {
		var h record.Host
		if err := h.Decode(value); err != nil {
			return false, err
		}
		if h.Bucket == "" {
			return true, nil
		}
		reply.Hosts++
		if !slices.Contains(reply.Buckets, h.Bucket) {
			reply.Buckets = append(reply.Buckets, h.Bucket)
		}
		return true, nil
	})
	return &wire.MetaResponse{Result: &wire.MetaResponse_Tier{Tier: reply}}, err
}
