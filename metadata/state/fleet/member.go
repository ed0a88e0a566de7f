package fleet

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// maxMemberName bounds the ID of a metadata server, in bytes.
const maxMemberName = 255

// SetMember records the data ID of a metadata server, the random name of its --data directory.
// Repeating it changes nothing. Another data ID for the same server fails with Conflict for ever:
// with its directory a server lost what it acknowledged and how it voted.
func SetMember(t *kvtx.Tx, op *statepb.SetMember) (*wire.MetaResponse, error) {
	id := op.GetId()
	if id == "" || len(id) > maxMemberName || len(op.GetDataId()) != len(moraine.UUID{}) {
		return nil, kvtx.Fail(moraine.InvalidArgument, "set member", id, "the server needs a name of 1 to %d bytes and a data id of 16 bytes", maxMemberName)
	}
	dir := moraine.UUID(op.GetDataId())
	have, ok, err := member(&t.View, id)
	if err != nil {
		return nil, err
	}
	if ok && have != dir {
		return nil, kvtx.Fail(moraine.Conflict, "set member", id, "a server of this name has another --data directory: use that directory, or another name")
	}
	t.Put(t.K.Member(id), record.EncodeMember(dir))
	return kvtx.Done(), nil
}

// member returns the present or former data ID of a metadata server.
func member(v *kvtx.View, id string) (dir moraine.UUID, known bool, err error) {
	b, ok, err := v.R.Get(v.K.Member(id))
	if err != nil || !ok {
		return dir, false, err
	}
	return record.DecodeMember(b)
}

// Member returns the data ID of the metadata server id as SetMember recorded it, also after the
// server's removal; false if it never took part.
func Member(r *kvtx.View, id string) (moraine.UUID, bool, error) {
	return member(r, id)
}

// RaiseIncarnation begins a new incarnation. Sessions of the previous one are
// refused by their numbers and expire. The state forgets the directories of the
// metadata servers, since the new ones differ. It forgets the devices' reports
// too: chunks may have moved since the state was saved.
func RaiseIncarnation(t *kvtx.Tx, op *statepb.RaiseIncarnation) (*wire.MetaResponse, error) {
	c, err := t.Cluster()
	if err != nil {
		return nil, err
	}
	last := max(uint32(c.Incarnation), op.GetAfter())
	if last >= MaxIncarnation {
		return nil, kvtx.Fail(moraine.TooLarge, "raise incarnation", "", "%d is the last incarnation number", last)
	}
	c.Incarnation = moraine.Incarnation(last + 1)
	t.Put(t.K.Meta(record.MetaCluster), c.Encode())
	members, err := t.KeysUnder(t.K.Table(record.TabMember), maxMembersForgotten)
	for _, key := range members {
		t.Del(key)
	}
	if err != nil {
		return nil, err
	}
	return kvtx.Done(), forgetReports(t)
}

const (
	// MaxIncarnation is the highest possible incarnation.
	MaxIncarnation      = 255
	maxMembersForgotten = 500
)
