package keys

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// sessionKeys are the keys of sessions, and of what each session has: answers, grants and files
// without a name.
type sessionKeys struct{ partition }

func (k sessionKeys) Session(s moraine.SessionID) []byte { return k.U64(record.TabSession, uint64(s)) }

func (k sessionKeys) SessionNonce(nonce []byte) []byte {
	return append(k.Key(record.TabSessionNonce, len(nonce)), nonce...)
}

func (k sessionKeys) Answers(s moraine.SessionID) []byte { return k.U64(record.TabAnswer, uint64(s)) }

func (k sessionKeys) Answer(s moraine.SessionID, number uint64) []byte {
	return k.u64x2(record.TabAnswer, uint64(s), number)
}

func (k sessionKeys) SessionGrants(s moraine.SessionID) []byte {
	return k.U64(record.TabSessionGrant, uint64(s))
}

func (k sessionKeys) SessionGrant(s moraine.SessionID, last moraine.StripeID) []byte {
	return k.u64x2(record.TabSessionGrant, uint64(s), uint64(last))
}

func (k sessionKeys) SessionInodes(s moraine.SessionID) []byte {
	return k.U64(record.TabSessionInode, uint64(s))
}

func (k sessionKeys) SessionInode(s moraine.SessionID, i moraine.InodeID) []byte {
	return k.u64x2(record.TabSessionInode, uint64(s), uint64(i))
}

func (k sessionKeys) SessionLocks(s moraine.SessionID) []byte {
	return k.U64(record.TabSessLock, uint64(s))
}

func (k sessionKeys) SessionLock(s moraine.SessionID, i moraine.InodeID) []byte {
	return k.u64x2(record.TabSessLock, uint64(s), uint64(i))
}

func (k sessionKeys) SessionDirs(s moraine.SessionID) []byte {
	return k.U64(record.TabSessDir, uint64(s))
}

func (k sessionKeys) SessionDir(s moraine.SessionID, dir moraine.InodeID) []byte {
	return k.u64x2(record.TabSessDir, uint64(s), uint64(dir))
}

func (k sessionKeys) SessionNumbers(s moraine.SessionID) []byte {
	return k.U64(record.TabSessNumbers, uint64(s))
}

func (k sessionKeys) Linger(number uint64) []byte { return k.U64(record.TabLinger, number) }

func (k sessionKeys) EndedSession(s moraine.SessionID) []byte {
	return k.U64(record.TabEndedSession, uint64(s))
}
