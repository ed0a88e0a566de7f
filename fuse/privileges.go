package fuse

import (
	"context"
	"syscall"

	"github.com/morainefs/moraine/client"
)

func (s *openInode) notePrivileges(mode uint32) {
	if mode&setBits != 0 {
		s.privileged.Store(true)
	}
}

// dropPrivileges clears the setuid and setgid bits of a file after a write by a
// user who may not keep them.
func (o *openFiles) dropPrivileges(ctx context.Context, s *openInode) error {
	attr, err := o.client.Inodes().Stat(ctx, s.inode)
	if err != nil {
		return err
	}
	if mode := withoutPrivileges(attr.Mode()); mode != attr.Mode() {
		_, err = o.client.Inodes().SetAttr(ctx, s.inode, client.SetAttr{Mode: &mode})
		if err != nil {
			return err
		}
	}
	s.privileged.Store(false)
	return nil
}

// withoutPrivileges is the mode after a write or a change of owner. A setgid bit
// without the right to execute once meant mandatory locking; it stays.
func withoutPrivileges(mode uint32) uint32 {
	mode &^= syscall.S_ISUID
	if mode&0o010 != 0 {
		mode &^= syscall.S_ISGID
	}
	return mode
}
