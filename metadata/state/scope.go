package state

import (
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// maxDepth bounds how many directories lie between the root and an inode, so
// that walks up the tree are bounded.
const maxDepth = 512

// nobody is who root is under a squash rule.
const nobody = 65534

// scope is what a request may see and do.
type scope struct {
	root     moraine.InodeID // confined to what is below it
	readOnly bool
	squash   bool
	session  moraine.SessionID // 0 where there is none
}

func GrantedScope(s *record.Session) scope {
	return scope{root: s.Root, readOnly: s.ReadOnly, squash: s.Squash, session: s.Id}
}

// enterWithout admits a mutation that comes without a session: what opens one,
// and what servers and admins do, which is safe to repeat by itself.
func (t *tx) enterWithout(req *wire.MetaRequest) error {
	switch req.GetOp().(type) {
	case *wire.MetaRequest_Create, *wire.MetaRequest_Rename, *wire.MetaRequest_Remove, *wire.MetaRequest_SetAttr,
		*wire.MetaRequest_RemoveTree, *wire.MetaRequest_Link, *wire.MetaRequest_Release, *wire.MetaRequest_SetXattr,
		*wire.MetaRequest_Clone, *wire.MetaRequest_CloneTree, *wire.MetaRequest_Concat, *wire.MetaRequest_CommitStage, *wire.MetaRequest_CommitRewrite, *wire.MetaRequest_CommitPack, *wire.MetaRequest_Grant, *wire.MetaRequest_EndGrant, *wire.MetaRequest_Hold, *wire.MetaRequest_EndHold, *wire.MetaRequest_Commit,
		*wire.MetaRequest_CloseSession, *wire.MetaRequest_OpenRun, *wire.MetaRequest_BeginStep,
		*wire.MetaRequest_SealPart, *wire.MetaRequest_AbortStep, *wire.MetaRequest_RemoveStep, *wire.MetaRequest_LeaseStep, *wire.MetaRequest_ReleaseStep:
		return fail(moraine.InvalidArgument, "apply", "", "%T needs a session", req.GetOp())
	}
	root, err := t.resolveScope(t.caller.GetScope())
	if err != nil {
		return err
	}
	t.scope = scope{root: root, readOnly: t.caller.GetReadOnly(), squash: t.caller.GetSquash()}
	return t.scope.mayMutate(req)
}

// covers reports whether the path inner is outer or below it.
func covers(outer, inner string) bool {
	for {
		var a, b string
		if a, outer = moraine.NextName(outer); a == "" {
			return true
		}
		if b, inner = moraine.NextName(inner); a != b {
			return false
		}
	}
}

// mayMutate fails with ReadOnly where a session that may not write asks for a
// change of the namespace or of content.
func (sc scope) mayMutate(req *wire.MetaRequest) error {
	if !sc.readOnly {
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
	return fail(moraine.ReadOnly, "apply", "", "the session may not write")
}

// readScope returns the scope of a read: the session's, or the caller's
// certificate where the request names no session.
func (v *view) readScope(caller *statepb.Caller, id moraine.SessionID) (scope, error) {
	if id == 0 {
		root, err := v.resolveScope(caller.GetScope())
		return scope{root: root, readOnly: true}, err
	}
	s, err := v.session(id)
	if err != nil {
		return scope{}, err
	}
	if !s.Of(caller) {
		return scope{}, noSession(s.Id)
	}
	return GrantedScope(s), nil
}

// resolveScope finds the directory that a scope names; "" and "/" are all.
// Symbolic links are not followed: a scope is what it says.
func (v *view) resolveScope(path string) (moraine.InodeID, error) {
	at := v.k.top()
	for name, rest := moraine.NextName(path); name != ""; name, rest = moraine.NextName(rest) {
		e, ok, err := v.lookup(at, name)
		if err != nil {
			return 0, err
		}
		if !ok || e.Typ != record.TypeDirectory {
			return 0, fail(moraine.NotFound, "resolve scope", path, "the directory that the certificate is confined to does not exist")
		}
		at = e.Inode
	}
	return at, nil
}

// InScope reports whether a directory is the one that a scope names, or below it.
func (m *Machine) InScope(r Reader, scope string, dir moraine.InodeID) (bool, error) {
	v := m.view(r)
	top, err := v.resolveScope(scope)
	var in bool
	if err == nil {
		in, err = v.below(top, dir)
	}
	if moraineKind(err) == moraine.NotFound {
		return false, nil
	}
	return in, err
}

// within fails unless i is the scope's root or below it, or a file without a name
// that the scope's session made. The error is the one for an inode that does not
// exist: a session does not learn what is outside its directory. Every other check of
// an inode that a caller names comes after this one.
func (v *view) within(sc scope, i *record.Inode) error {
	ok, err := v.inScope(sc, i)
	if err == nil && !ok {
		err = noInode(i.Id)
	}
	return err
}

func (v *view) inScope(sc scope, i *record.Inode) (bool, error) {
	if i.Nlink == 0 && i.Owner == 0 && i.Typ == record.TypeFile {
		return false, nil // a job is making it
	}
	if sc.root == v.k.top() || i.Id == sc.root {
		return true, nil
	}
	if i.Parent == 0 && i.Owner != 0 && i.Owner == sc.session {
		return true, nil
	}
	ok, err := v.below(sc.root, i.Parent)
	if err == nil && !ok && i.ManyLinks && i.Nlink > 1 {
		_, _, ok, err = v.nameBelow(sc.root, i)
	}
	return ok, err
}

// noInode is the error for an inode that does not exist.
func noInode(id moraine.InodeID) error { return fail(moraine.NotFound, "inode", id.String(), "") }

// named returns an inode that the caller names, which is in its scope.
func (t *tx) named(id moraine.InodeID) (*record.Inode, error) {
	i, err := t.inode(id)
	if err != nil {
		return nil, err
	}
	return i, t.within(t.scope, i)
}

// named returns an inode that the caller of a read names, which is in its scope.
func (v *view) named(sc scope, id moraine.InodeID) (*record.Inode, error) {
	i, err := v.inode(id)
	if err != nil {
		return nil, err
	}
	return i, v.within(sc, i)
}

// below reports whether the directory at is top or below it.
func (v *view) below(top, at moraine.InodeID) (bool, error) {
	for depth := 0; at != 0 && depth <= maxDepth; depth++ {
		if at == top {
			return true, nil
		}
		dir, err := v.inode(at)
		if err != nil {
			return false, err
		}
		at = dir.Parent
	}
	return false, nil
}

// squashed returns the user or group that id is under the scope.
func (sc scope) squashed(id uint32) uint32 {
	if sc.squash && id == 0 {
		return nobody
	}
	return id
}

// moraineKind returns the kind of err if it is a *moraine.Error; -1 else.
func moraineKind(err error) moraine.Kind {
	var e *moraine.Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return noKind
}

// noKind is no Kind at all.
const noKind = moraine.Kind(255)
