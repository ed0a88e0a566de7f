package fuse

import (
	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine/client"
)

// Tmpfile implements gofuse.RawFileSystem: open with O_TMPFILE. The session owns the
// file until a link names it or its last close releases it.
func (o *openFiles) Tmpfile(cancel <-chan struct{}, in *gofuse.CreateIn, out *gofuse.CreateOut) gofuse.Status {
	ctx, done := o.request(cancel, &in.InHeader)
	defer done()
	opts := client.NodeOptions{Mode: in.Mode & permBits, Umask: in.Umask}
	o.made(in.Owner, &opts)
	attr, err := o.client.Inodes().CreateUnnamed(ctx, o.inode(in.NodeId), opts)
	if err != nil {
		return nodeStatus(err)
	}
	s, err := o.files.pin(ctx, attr.Inode())
	if err != nil {
		o.background.Go(func() { // nobody will close it
			_ = o.client.Inodes().Release(o.life, attr.Inode()) // the client repeats it
		})
		return status(err)
	}
	o.files.keep(s)
	if err := o.openPinned(ctx, s, in.Flags, in.Unique, &out.OpenOut); err != nil {
		return nodeStatus(err)
	}
	o.fillEntry(attr, &out.EntryOut)
	return gofuse.OK
}

// keep records that the session owns the inode, which has no name.
func (t *table) keep(s *openInode) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.kept = true
	t.noteKept(s)
}
