package names

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// nobody is who root is under a squash rule.
const nobody = 65534

// EnterWithout admits a mutation that comes without a session: what opens one,
// and what servers and admins do, which is safe to repeat by itself.
func EnterWithout(t *kvtx.Tx, req *wire.MetaRequest) error {
	switch req.GetOp().(type) {
	case *wire.MetaRequest_Create, *wire.MetaRequest_Rename, *wire.MetaRequest_Remove, *wire.MetaRequest_SetAttr,
		*wire.MetaRequest_RemoveTree, *wire.MetaRequest_Link, *wire.MetaRequest_Release, *wire.MetaRequest_SetXattr,
		*wire.MetaRequest_Clone, *wire.MetaRequest_CloneTree, *wire.MetaRequest_Concat, *wire.MetaRequest_CommitStage, *wire.MetaRequest_CommitRewrite, *wire.MetaRequest_CommitPack, *wire.MetaRequest_Grant, *wire.MetaRequest_EndGrant, *wire.MetaRequest_Hold, *wire.MetaRequest_EndHold, *wire.MetaRequest_Commit,
		*wire.MetaRequest_CloseSession, *wire.MetaRequest_OpenRun, *wire.MetaRequest_BeginStep,
		*wire.MetaRequest_SealPart, *wire.MetaRequest_AbortStep, *wire.MetaRequest_RemoveStep, *wire.MetaRequest_LeaseStep, *wire.MetaRequest_ReleaseStep:
		return kvtx.Fail(moraine.InvalidArgument, "apply", "", "%T needs a session", req.GetOp())
	}
	root, err := tree.ResolveScope(&t.View, t.Caller.GetScope())
	if err != nil {
		return err
	}
	t.Scope = kvtx.Scope{Root: root, ReadOnly: t.Caller.GetReadOnly(), Squash: t.Caller.GetSquash()}
	return MayMutate(t.Scope, req)
}

// MayMutate fails with ReadOnly where a session that may not write asks for a
// change of the namespace or of content.
func MayMutate(sc kvtx.Scope, req *wire.MetaRequest) error {
	if !sc.ReadOnly {
		return nil
	}
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_OpenSession, *wire.MetaRequest_CloseSession, *wire.MetaRequest_ReportBadChunks,
		*wire.MetaRequest_LeaseStep, *wire.MetaRequest_ReleaseStep:
		return nil
	case *wire.MetaRequest_OpenRun:
		if op.OpenRun.GetReadOnly() {
			return nil
		}
	case *wire.MetaRequest_ResolveStep:
		if !op.ResolveStep.GetFix() {
			return nil
		}
	}
	return kvtx.Fail(moraine.ReadOnly, "apply", "", "the session may not write")
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
