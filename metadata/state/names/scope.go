package names

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tree"
)

// nobody is who root is under a squash rule.
const nobody = 65534

// EnterWithout gives a mutation that comes without a session the scope of its
// certificate: what opens a session, and what servers and admins do, which is
// safe to repeat by itself.
func EnterWithout(t *kvtx.Tx) error {
	root, err := tree.ResolveScope(&t.View, t.Caller.GetScope())
	if err != nil {
		return err
	}
	t.Scope = kvtx.Scope{Root: root, ReadOnly: t.Caller.GetReadOnly(), Squash: t.Caller.GetSquash()}
	return nil
}

// ReadScope returns the scope of a read: the session's, or the caller's
// certificate where the request names no session.
func ReadScope(v *kvtx.View, caller *statepb.Caller, id moraine.SessionID) (kvtx.Scope, error) {
	if id == 0 {
		root, err := tree.ResolveScope(v, caller.GetScope())
		return kvtx.Scope{Root: root, ReadOnly: true}, err
	}
	s, err := v.Session(id)
	if err != nil {
		return kvtx.Scope{}, err
	}
	if !s.Of(caller) {
		return kvtx.Scope{}, kvtx.NoSession(s.Id)
	}
	return kvtx.GrantedScope(s), nil
}

// InScope reports whether a directory is the one that a scope names, or below it.
func InScope(r *kvtx.View, scope string, dir moraine.InodeID) (bool, error) {
	v := r
	top, err := tree.ResolveScope(v, scope)
	var in bool
	if err == nil {
		in, err = tree.Below(v, top, dir)
	}
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return false, nil
	}
	return in, err
}

// Squashed returns the user or group that id is under the scope.
func Squashed(sc kvtx.Scope, id uint32) uint32 {
	if sc.Squash && id == 0 {
		return nobody
	}
	return id
}
