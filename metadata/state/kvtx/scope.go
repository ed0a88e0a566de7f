package kvtx

import (
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// MaxDepth is the largest number of directories between the root and an inode. It bounds walks up
// the tree.
const MaxDepth = 512

// MaxDelegated is the largest number of directories above a delegated one.
const MaxDelegated = MaxDepth / 2

// Scope is what a request may read and change.
type Scope struct {
	Root     moraine.InodeID // the request sees only what is below this directory
	ReadOnly bool
	Squash   bool
	Session  moraine.SessionID // 0 if there is no session
}

// Nobody is the user and group that Squash substitutes for root.
const Nobody = 65534

// GrantedScope returns the scope that a session's record allows.
func GrantedScope(s *record.Session) Scope {
	return Scope{Root: s.Root, ReadOnly: s.ReadOnly, Squash: s.Squash, Session: s.Id}
}

// NoInode is the error for an inode that does not exist.
func NoInode(id moraine.InodeID) error { return Fail(moraine.NotFound, "inode", id.String(), "") }

// MoraineKind returns the kind of err if it is a *moraine.Error; -1 else.
func MoraineKind(err error) moraine.Kind {
	var e *moraine.Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return noKind
}

// noKind is a value that is no valid Kind.
const noKind = moraine.Kind(255)

// Roles in the certificates of chunkservers and administrators.
const (
	RoleChunkserver = "chunkserver"
	RoleAdmin       = "admin"
)
