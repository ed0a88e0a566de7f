package tree

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// maxMetAtOnce is how many delegations a request for all of them meets at once.
const maxMetAtOnce = 512

// Delegated returns at most limit delegations of live sessions.
func Delegated(v *kvtx.View, limit int) (all []kvtx.Met, err error) {
	last, counts := moraine.SessionID(0), false
	err = v.EachIn(v.K.Table(record.TabSessDir), func(key, _ []byte) (bool, error) {
		session := moraine.SessionID(binary.BigEndian.Uint64(key[3:]))
		if session != last {
			_, live, err := v.R.Get(v.K.Session(session))
			if err != nil {
				return false, err
			}
			last, counts = session, live
		}
		if counts {
			all = append(all, kvtx.Met{Dir: moraine.InodeID(record.LastU64(key)), Session: session})
		}
		return len(all) < limit, nil
	})
	return all, err
}

// MeetAll makes a request meet the delegations of all sessions, the caller's too: what it has queued, or
// answers next, may break a rule that begins with the request. It is for changes of a
// directory that decide what may be delegated below it. Those are rare, and to wait for all is
// simpler than to find out which are below.
func MeetAll(v *kvtx.View) error {
	if v.Meeting == nil {
		return nil
	}
	all, err := Delegated(v, maxMetAtOnce)
	v.Meeting.Met = append(v.Meeting.Met, all...)
	return err
}

// Hidden reports whether a directory is in a trash, or in another directory of the service.
func Hidden(v *kvtx.View, dir *record.Inode) (bool, error) {
	for depth := 0; depth <= kvtx.MaxDepth; depth++ {
		if moraine.IsReserved(dir.Name) {
			return true, nil
		}
		if dir.Parent == 0 {
			return false, nil
		}
		var err error
		if dir, err = Ancestor(v, dir.Parent); err != nil {
			return false, kvtx.Damaged(err)
		}
	}
	return false, nil
}
