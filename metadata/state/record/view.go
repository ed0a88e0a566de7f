package record

import "github.com/morainefs/moraine"

// SessionInfo is a session as the service sees it.
type SessionInfo struct {
	ID   moraine.SessionID
	Node string
	// Principal identifies the certificate that opened it.
	Principal Principal
	Role      string
	Root      moraine.InodeID
	Scope     string
	ReadOnly  bool
	Squash    bool
	Opened    uint64 // cluster time, milliseconds
	Leases    bool   // it may hold leases
}

func (s *Session) Info() SessionInfo {
	return SessionInfo{ID: s.Id, Node: s.Node, Principal: s.Principal, Role: s.Role, Root: s.Root, Scope: s.Scope, ReadOnly: s.ReadOnly,
		Squash: s.Squash, Opened: s.Opened, Leases: s.Leases}
}
