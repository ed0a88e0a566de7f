package client

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport/wire"
)

// A File has no inode until it needs one: a small file is made by its commit.

// make makes the file, without a name, unless it is made. The caller holds the mutex, or the file has
// not begun.
func (f *File) make(ctx context.Context) error {
	if f.attr != nil {
		return nil
	}
	req := &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
		Parent: uint64(f.sender.Key.Dir), Type: wire.FileType_FILE_TYPE_REGULAR, Mode: f.node.Mode,
		Uid: f.node.Uid, Gid: f.node.Gid, Xattrs: f.node.Xattrs, Unlinked: true}}}
	if f.link != nil {
		req.GetCreate().Parent = f.link.Parent
	}
	var resp *wire.MetaResponse
	var err error
	if f.life == nil { // not begun: any session may own it
		resp, f.session, err = f.c.meta.DoIn(ctx, req)
	} else {
		resp, err = f.c.meta.DoUnder(ctx, req, f.session)
	}
	attr := resp.GetEntry().GetAttr()
	if err == nil && attr.GetInode() == 0 {
		err = retry.BadReply("create")
	}
	if err != nil {
		return err
	}
	inode := moraine.InodeID(attr.Inode)
	if f.ref == "" {
		f.ref = inode.String()
	}
	f.attr, f.sender.Inode, f.sender.Key.Tenant = attr, inode, attr.Tenant
	f.inode.Store(attr.Inode)
	f.log.generation = attr.Generation
	return nil
}

// need makes the file, unless it is made or ended, and makes it again where its directory was
// removed and made again.
func (f *File) need() error {
	_, err := f.named(f.life, func() (*wire.Attr, error) { return f.attr, f.make(f.life) })
	return err
}

// takeSmall takes the content of a file that its commit makes, or that fits into its commit; nil if it
// is empty. ok is false if it does not fit. A file that gets no name, such as the part of a checkpoint,
// is written to stripes. Until putBack nothing else sends the content.
func (f *File) takeSmall() (st *stripeio.Stripe, ok bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.isSmall() {
		return nil, false, nil
	}
	if err := f.broken(); err != nil {
		return nil, false, f.fail("client.Commit", err)
	}
	st, f.cur = f.cur, nil
	return st, true, nil
}

// putBack gives the content back, to be sent as a stripe or freed. It frees it if the file has ended meanwhile.
func (f *File) putBack(st *stripeio.Stripe) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		f.drop(st, nil)
		return
	}
	f.cur = st
}

// isSmall reports whether all of the file, as written so far, fits into its commit. The caller holds
// the mutex.
func (f *File) isSmall() bool {
	if f.link == nil || f.seq > 0 || f.ticket != nil || f.sender.Key.Scheme.K != 0 || f.sender.DeferFor != 0 {
		return false
	}
	if f.size == 0 {
		return f.attr == nil
	}
	return f.cur != nil && f.cur.Length == f.size && f.size <= f.c.cfg.InlineBytes
}

// finishSmall commits the whole content, with the file's name.
func (l *commitLog) finishSmall(ctx context.Context, f *File, st *stripeio.Stripe) (*wire.Attr, error) {
	var content []byte
	if st != nil {
		content = st.Inline()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.final = true
	op := &wire.Commit{Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Content: content, Final: true, Link: f.link}
	if f.attr != nil {
		op.Inode, op.ExpectGeneration = f.attr.Inode, l.generation
	} else {
		op.NewFile = f.node
	}
	resp, err := f.c.meta.DoUnder(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: op}}, f.session)
	if err != nil {
		return nil, err
	}
	r := resp.GetCommit()
	if r.GetAttr() == nil {
		return nil, retry.BadReply("commit")
	}
	f.c.incarnation.Store(uint32(r.Attr.Generation >> 56))
	f.inode.Store(r.Attr.Inode)
	l.crc, l.protects = crc.Sum(content), r.Protects
	return r.Attr, nil
}

// SetXattr gives the file an extended attribute that it has from the moment of its name on. The
// service bounds them, see Xattrs.Set.
func (f *File) SetXattr(ctx context.Context, name string, value []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.attr != nil {
		return f.c.Xattrs().Set(ctx, f.Inode(), name, value, XattrAny)
	}
	for _, x := range f.node.Xattrs {
		if x.Name == name {
			x.Value = value
			return nil
		}
	}
	f.node.Xattrs = append(f.node.Xattrs, &wire.Xattr{Name: name, Value: value})
	return nil
}

// NextGeneration returns the generation that Commit gives the file, if nothing is written after it. It
// is right but for rare cases: devices went out before the commit, or the metadata was restored from a
// backup. A caller that records it compares it with CommitResult.
func (f *File) NextGeneration(ctx context.Context) (moraine.Generation, error) {
	f.mu.Lock()
	unmade := f.attr == nil && f.isSmall()
	f.mu.Unlock()
	if unmade { // a new file has generation 1, and its content makes the next
		return moraine.Generation(uint64(f.c.incarnation.Load())<<56 | 2), nil
	}
	if err := f.Flush(ctx); err != nil {
		return 0, err
	}
	f.mu.Lock()
	err := f.need()
	f.mu.Unlock()
	if err != nil {
		return 0, f.fail("client.Commit", err)
	}
	attr, err := f.c.Inodes().Stat(ctx, f.Inode())
	return attr.Generation() + 1, err
}
