package kvtx

import (
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// MaxDepth bounds how many directories lie between the root and an inode, so
// that walks up the tree are bounded.
const MaxDepth = 512

// Scope is what a request may see and do.
type Scope struct {
	Root     moraine.InodeID // confined to what is below it
	ReadOnly bool
	Squash   bool
	Session  moraine.SessionID // 0 where there is none
}

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

// noKind is no Kind at all.
const noKind = moraine.Kind(255)

// The roles of a chunkserver's certificate and of an administrator's.
const (
	RoleChunkserver = "chunkserver"
	RoleAdmin       = "admin"
)
