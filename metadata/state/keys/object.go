package keys

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// objectKeys are the keys of the object tier.
type objectKeys struct{ partition }

func (k objectKeys) Object(o moraine.ObjectID) []byte { return k.U64(record.TabObject, uint64(o)) }

func (k objectKeys) RemovedIndex(dir record.Place) []byte {
	return dir.Append(k.Key(record.TabRemovedIndex, dir.Len()))
}

func (k objectKeys) BadObject(o moraine.ObjectID) []byte {
	return k.U64(record.TabBadObject, uint64(o))
}

func (k objectKeys) ObjectKey(p record.Place) []byte {
	return p.Append(k.Key(record.TabObjectKey, p.Len()))
}

func (k objectKeys) ObjectSums(o moraine.ObjectID) []byte {
	return k.U64(record.TabObjectSums, uint64(o))
}

func (k objectKeys) ObjectSum(o moraine.ObjectID, block uint64) []byte {
	return k.u64x2(record.TabObjectSums, uint64(o), block)
}

func (k objectKeys) ObjectIntent(j moraine.JobID) []byte {
	return k.U64(record.TabObjectIntent, uint64(j))
}

func (k objectKeys) Move(i moraine.InodeID, kind uint8) []byte {
	return append(record.Be64(k.Key(record.TabMove, 9), uint64(i)), kind)
}

func (k objectKeys) Unsettled(until uint64, p record.Place) []byte {
	return p.Append(record.Be64(k.Key(record.TabUnsettled, 8+p.Len()), until))
}
