package bench

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// Small works on inodes, as a mount does.
func (t *clusterTarget) Small(ctx context.Context, op Op, name, to string) error {
	switch op {
	case OpCommit:
		return t.commit(ctx, name)
	case OpStatLoaded:
		return t.walk(ctx, name)
	}
	parent := name
	if op != OpReadDir {
		parent = path.Dir(name)
	}
	dir, err := t.dir(ctx, parent)
	if err != nil {
		return err
	}
	switch op {
	case OpCreate:
		_, err = t.c.Inodes().CreateEmpty(ctx, dir, path.Base(name), 0o644)
	case OpSmallFile:
		err = t.smallFile(ctx, dir, path.Base(name))
	case OpStat:
		_, err = t.c.Inodes().Lookup(ctx, dir, path.Base(name))
	case OpReadDir:
		for _, err = range t.c.Inodes().ReadDir(ctx, dir) {
			if err != nil {
				break
			}
		}
	case OpRename:
		err = t.c.Inodes().Rename(ctx, client.Entry{Parent: dir, Name: path.Base(name)}, client.Entry{Parent: dir, Name: path.Base(to)}, client.RenameOptions{})
	case OpUnlink:
		_, err = t.c.Inodes().Remove(ctx, dir, path.Base(name), client.RemoveOptions{})
	default:
		err = fmt.Errorf("bench: a cluster does not support %s", op)
	}
	return err
}

// smallFile makes a file of one block, as a mount does: it is durable when it is closed.
func (t *clusterTarget) smallFile(ctx context.Context, dir moraine.InodeID, name string) error {
	attr, err := t.c.Inodes().Create(ctx, dir, name, client.NodeOptions{Mode: 0o644, Exclusive: true})
	if err != nil {
		return err
	}
	h, err := t.c.Inodes().OpenHandle(ctx, attr.Inode(), client.HandleOptions{})
	if err != nil {
		return err
	}
	_, err = h.WriteAt(ctx, smallBlock[:], 0)
	return errors.Join(err, h.Close(ctx))
}

// smallBlock is the content of a small file.
var smallBlock [moraine.BlockSize]byte

// walk requests the attributes of a path, past every cache of the client.
func (t *clusterTarget) walk(ctx context.Context, name string) error {
	resp, err := rawclient.Of(t.c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{Path: name}}})
	if err == nil && !resp.GetWalk().GetFound() {
		err = fmt.Errorf("bench: %s does not exist", name)
	}
	return err
}

// commitGrant is how many stripes one grant has: as for a client that writes much.
const commitGrant = 256

// commit appends a small write's stripe (three copies), whose chunks are not put,
// to a file; the first call makes the file.
func (t *clusterTarget) commit(ctx context.Context, name string) error {
	inode, err := t.file(ctx, name)
	if err != nil {
		return err
	}
	if len(t.granted.GetPlacements()) == 0 {
		resp, err := rawclient.Of(t.c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{
			Inode: uint64(inode), Count: commitGrant, Scheme: &wire.Scheme{K: 1, M: 2}}}})
		if err != nil {
			return err
		}
		t.granted = resp.GetGrant()
	}
	p := t.granted.GetPlacements()[0]
	t.granted.Placements = t.granted.GetPlacements()[1:]
	stripe := &wire.Stripe{Id: p.GetStripe(), Scheme: p.GetScheme(), Version: 1, Tenant: t.granted.GetTenant(), Length: moraine.BlockSize}
	for _, d := range p.GetDevices() {
		stripe.Chunks = append(stripe.Chunks, &wire.ChunkState{Device: d, Level: uint32(moraine.NVMe)})
	}
	_, err = rawclient.Of(t.c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{
		Inode: uint64(inode), Stripes: []*wire.Stripe{stripe}, Extents: []*wire.Extent{{Length: moraine.BlockSize, Stripe: p.GetStripe()}},
		Mode: wire.CommitMode_COMMIT_MODE_APPEND, Level: uint32(moraine.NVMe)}}})
	return err
}

// file returns the inode of the file that OpCommit appends to.
func (t *clusterTarget) file(ctx context.Context, name string) (moraine.InodeID, error) {
	if t.appended != 0 {
		return t.appended, nil
	}
	dir, err := t.dir(ctx, path.Dir(name))
	if err != nil {
		return 0, err
	}
	attr, err := t.c.Inodes().CreateEmpty(ctx, dir, path.Base(name), 0o644)
	if err == nil {
		t.appended = attr.Inode()
	}
	return t.appended, err
}
