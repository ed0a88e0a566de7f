package delegation

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// maxRevoked is how many other directories one RevokeDelegation takes. Each is two keys.
const maxRevoked = 1000

// RevokeDelegation takes a directory from a session that did not give it back in time, and with it
// others of the session: it trusts none of them any more.
func RevokeDelegation(t *kvtx.Tx, op *statepb.RevokeDelegation) (*wire.MetaResponse, error) {
	dir, session := moraine.InodeID(op.GetInode()), moraine.SessionID(op.GetSession())
	if _, has, err := t.Get(t.K.SessionDir(session, dir)); err != nil || !has {
		return kvtx.Done(), err
	}
	if err := end(t, dir, session); err != nil {
		return nil, err
	}
	rows, err := t.KeysUnder(t.K.SessionDirs(session), maxRevoked)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		if err := end(t, moraine.InodeID(record.LastU64(row)), session); err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), nil
}

// OneOf returns a directory that is delegated to a session; 0 if none is.
func OneOf(v *kvtx.View, session moraine.SessionID) (moraine.InodeID, error) {
	rows, err := v.KeysUnder(v.K.SessionDirs(session), 1)
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	return moraine.InodeID(record.LastU64(rows[0])), nil
}
