package client

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/nodecache"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/transport/wire"
)

// openNodeCache opens the cache in Config.CacheDir; nil if it names none.
func openNodeCache(cfg Config, deps Deps) (*nodecache.Cache, error) {
	if cfg.CacheDir == "" {
		return nil, nil
	}
	return nodecache.Open(nodecache.Config{Dir: cfg.CacheDir, Bytes: cfg.CacheBytes, QueueBytes: min(cfg.MemoryBytes/8, 64<<20)},
		nodecache.Deps{FS: vfs.OS{}, Clock: deps.Clock, Log: deps.Log, Metrics: deps.Metrics.counts})
}

// content names what a reader reads for the node's cache. The incarnation is the one of the
// opening, as the generation is: a later incarnation may give the generation to other bytes, if it
// does not descend from this one.
func contentOf(c *Client, a *wire.Attr) nodecache.Content {
	s := c.meta.Current()
	return nodecache.Content{Cluster: s.Cluster, Incarnation: s.Incarnation, Inode: moraine.InodeID(a.Inode),
		Generation: moraine.Generation(a.Generation), Size: int64(a.Size)}
}

// usesNodeCache reports whether a read may use the node's cache. A reader of one object reads that
// object. A job, and a caller that wants the checksums of what arrived, read what the servers have.
func (r *Reader) usesNodeCache(ctx context.Context) bool {
	return r.content.Inode != 0 && r.object == nil && r.extents.Job == 0 && stripeio.JobOf(ctx) == 0 && crc.SumsOf(ctx) == nil
}
