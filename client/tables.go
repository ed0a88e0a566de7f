package client

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/transport/wire"
)

// A file that came about in very many small steps is recorded in very many tables, and
// one entry of the service's log changes so many of them at most. What is TooLarge for
// that is done in steps here.

// changeAttr is a SetAttr. One of a size that cuts off too much at once is made in steps
// from the end of the file: others may see sizes between the two, and where it fails in
// the middle some of what was to be cut off is.
func (c *Client) changeAttr(ctx context.Context, op *wire.SetAttr) (*wire.MetaResponse, error) {
	set := func(op *wire.SetAttr) (*wire.MetaResponse, error) {
		return c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: op}})
	}
	resp, err := set(op)
	const size = uint32(wire.SetAttrField_SET_ATTR_SIZE)
	if !retry.IsKind(err, moraine.TooLarge) || op.Valid&size == 0 {
		return resp, err
	}
	a, serr := c.StatInode(ctx, moraine.InodeID(op.Inode))
	if serr != nil {
		return nil, serr
	}
	for end := a.Size; end > op.Size; {
		step := (end - op.Size) / 2
		for ; step > 0; step /= 2 {
			if _, serr := set(&wire.SetAttr{Inode: op.Inode, Size: end - step, Valid: size}); serr == nil {
				break
			} else if !retry.IsKind(serr, moraine.TooLarge) {
				return nil, serr
			}
		}
		if step == 0 {
			return nil, err
		}
		end -= step
		if resp, err = set(op); !retry.IsKind(err, moraine.TooLarge) {
			return resp, err
		}
	}
	return nil, err
}

// mergeTables has the tables put together that the extents of a commit lie over, which
// was TooLarge: nothing of it was applied. It is under s, as the commit is.
func (ct *content) mergeTables(op *wire.Commit, s *session.Session) error {
	for i := 0; i < len(op.Extents); {
		from, to := op.Extents[i].Offset, op.Extents[i].Offset+op.Extents[i].Length
		for i++; i < len(op.Extents) && op.Extents[i].Offset == to; i++ {
			to += op.Extents[i].Length
		}
		for from < to {
			resp, err := ct.c.meta.DoUnder(ct.life, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{
				Inode: op.Inode, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, MergeFrom: from, MergeTo: to}}}, s)
			if err != nil {
				return err
			}
			if resp.GetCommit().GetMergedTo() <= from {
				return retry.BadReply("commit")
			}
			from = resp.GetCommit().MergedTo
		}
	}
	return nil
}
