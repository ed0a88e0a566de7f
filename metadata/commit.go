package metadata

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// commit proposes a commit. A commit with chunks in memory needs a state at LevelMemory, which
// tracks such chunks and raises their files.
func (l *leader) commit(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	if err := l.ownFile(c); err != nil {
		return nil, err
	}
	for _, s := range c.Req.GetCommit().GetStripes() {
		for _, chunk := range s.GetChunks() {
			if chunk.GetLevel() != uint32(moraine.Memory) {
				continue
			}
			if err := l.Speaks(ctx, kvtx.LevelMemory); err != nil {
				return nil, err
			}
		}
	}
	return l.Mutate(ctx, c)
}
