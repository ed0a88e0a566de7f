package fleet

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// maxMemberName bounds the id of a metadata server, in bytes.
const maxMemberName = 255

// SetMember records the data id of a metadata server, the random name of its --data. The same again changes
// nothing; another one under the name is Conflict, for ever: with its --data a
// server has lost what it acknowledged and whom it voted for.
func SetMember(t *kvtx.Tx, op *statepb.SetMember) (*wire.MetaResponse, error) {
	if moraine.FeatureLevel < kvtx.LevelMembers {
		return nil, kvtx.UnknownCommand(op)
	}
	id := op.GetId()
	if id == "" || len(id) > maxMemberName || len(op.GetDataId()) != len(moraine.UUID{}) {
		return nil, kvtx.Fail(moraine.InvalidArgument, "set member", id, "want a name of 1 to %d bytes and a data id of 16", maxMemberName)
	}
	dir := moraine.UUID(op.GetDataId())
	have, ok, err := member(&t.View, id)
	if err != nil {
		return nil, err
	}
	if ok && have != dir {
		return nil, kvtx.Fail(moraine.Conflict, "set member", id, "it has another --data")
	}
	t.Put(t.K.Member(id), record.EncodeMember(dir))
	return kvtx.Done(), nil
}

// member returns the data id that a metadata server has, or had.
func member(v *kvtx.View, id string) (dir moraine.UUID, known bool, err error) {
	b, ok, err := v.R.Get(v.K.Member(id))
	if err != nil || !ok {
		return dir, false, err
	}
	return record.DecodeMember(b)
}

// Member returns the data id of the metadata server id, as SetMember recorded
// it, also of one that was removed since; false where it never took part.
func Member(r *kvtx.View, id string) (moraine.UUID, bool, error) {
	return member(r, id)
}

// RaiseIncarnation begins another incarnation. Sessions of the one before are refused
// by their numbers, and end as those that are not renewed; the servers' directories
// are forgotten, as those of the new one are others, and so are the reports of devices:
// what they hold may have moved since the state was.
func RaiseIncarnation(t *kvtx.Tx, op *statepb.RaiseIncarnation) (*wire.MetaResponse, error) {
	if moraine.FeatureLevel < kvtx.LevelMembers {
		return nil, kvtx.UnknownCommand(op)
	}
	c, err := t.Cluster()
	if err != nil {
		return nil, err
	}
	last := max(uint32(c.Incarnation), op.GetAfter())
	if last >= MaxIncarnation {
		return nil, kvtx.Fail(moraine.TooLarge, "raise incarnation", "", "after %d there is none", last)
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
	return kvtx.Done(), ForgetReports(t)
}

const (
	// MaxIncarnation is the highest number that there is.
	MaxIncarnation      = 255
	maxMembersForgotten = 500
)
