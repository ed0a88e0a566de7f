package incluster

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// Backup returns a backup file of the metadata, as `moraine metadata backup` writes
// it. The client must be an administrator's.
func (c *Client) Backup(ctx context.Context) ([]byte, error) {
	var out bytes.Buffer
	var w *raftstore.BackupWriter
	for id, offset := uint64(0), uint64(0); ; {
		resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReadBackup{ReadBackup: &wire.ReadBackup{Backup: id, Offset: offset}}})
		if err != nil {
			return nil, err
		}
		r := resp.GetReadBackup()
		if w == nil {
			info := raftstore.BackupInfo{Cluster: moraine.UUID(r.Cluster), Incarnation: r.Incarnation, Applied: r.Applied, Term: r.Term, Taken: time.Now(), Bytes: int64(r.Size)}
			if w, err = raftstore.NewBackupWriter(&out, info); err != nil {
				return nil, err
			}
		}
		if len(r.Data) == 0 {
			err := w.Close()
			return out.Bytes(), err
		}
		if _, err := w.Write(r.Data); err != nil {
			return nil, err
		}
		id, offset = r.Backup, offset+uint64(len(r.Data))
	}
}

// RestoreMetadata ends all metadata servers for good and starts m1 alone, on a
// disk with only the contents of a backup. It has the incarnation after
// `after`. The chunkservers continue. Earlier sessions are refused: open new
// clients. No other method may be called meanwhile.
func (c *Cluster) RestoreMetadata(backup []byte, after moraine.Incarnation) error {
	var first *node
	var rest []*node
	var ids []string
	for _, n := range c.nodes {
		switch {
		case n.role != transport.RoleMetadata:
			rest = append(rest, n)
		case first == nil:
			first, ids = n, append(ids, n.id)
		default:
			ids = append(ids, n.id)
		}
	}
	c.Kill(ids...)
	for _, n := range c.named(ids) {
		n.wait()
	}
	c.nodes = append([]*node{first}, rest...)
	disk := vfs.NewMem(c.opts.Seed<<8 + 0xbac0 + uint64(after))
	begin, err := metadata.NextIncarnation(after, crand.Reader)
	if err != nil {
		return err
	}
	if _, err := raftstore.Restore(first.raftConfig(), raftstore.Deps{FS: disk}, bytes.NewReader(backup), int64(len(backup)), begin); err != nil {
		return err
	}
	c.power.gate.Lock()
	first.current().left = disk
	c.power.gate.Unlock()
	return c.Restart(first.id)
}
