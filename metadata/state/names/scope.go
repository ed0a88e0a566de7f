package names

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tree"
)

// EnterWithout sets the scope of a mutation without a session from its certificate. Such mutations
// open sessions or come from servers and administrators, and are safe to repeat.
func EnterWithout(t *kvtx.Tx) error {
	root, err := tree.ResolveScope(&t.View, t.Caller.GetScope())
	if err != nil {
		return err
	}
	t.Scope = kvtx.Scope{Root: root, ReadOnly: t.Caller.GetReadOnly(), Squash: t.Caller.GetSquash()}
	return nil
}

// ReadScope returns the scope of a read: the session's, or that of the caller's certificate if the
// request names no session.
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

// InScope reports whether a directory is at or below the path of a scope.
func InScope(v *kvtx.View, scope string, dir moraine.InodeID) (bool, error) {
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

// squashed returns the user or group that the scope substitutes for id.
func squashed(sc kvtx.Scope, id uint32) uint32 {
	if sc.Squash && id == 0 {
		return kvtx.Nobody
	}
	return id
}
