package client

import (
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/transport/wire"
)

// A file that was written in very many small steps is recorded in very many tables. One log
// entry of the service changes only a limited number of them. The functions here split into
// steps what is TooLarge for one entry.

// mergeTables makes the service merge the tables over which the extents of a
// commit lie. The commit was TooLarge, and nothing of it was applied. It runs
// under s, like the commit.
func (q *committer) mergeTables(op *wire.Commit, s *session.Session) error {
	for i := 0; i < len(op.Extents); {
		from, to := op.Extents[i].Offset, op.Extents[i].Offset+op.Extents[i].Length
		for i++; i < len(op.Extents) && op.Extents[i].Offset == to; i++ {
			to += op.Extents[i].Length
		}
		for from < to {
			resp, err := q.c.meta.DoUnder(q.life, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{
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
