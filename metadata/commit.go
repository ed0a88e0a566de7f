package metadata

import (
	"context"

	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/transport/wire"
)

// commit proposes a commit.
func (l *leader) commit(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	if err := l.ownFile(c); err != nil {
		return nil, err
	}
	return l.Mutate(ctx, c)
}
