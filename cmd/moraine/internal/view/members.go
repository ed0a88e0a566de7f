package view

import (
	"context"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// Members requests the list of all metadata servers from the leader.
func Members(ctx context.Context, c *cli.Connection) (*wire.MembersReply, error) {
	return RequestMembers(ctx, c, &wire.MetaRequest{Op: &wire.MetaRequest_GetMembers{GetMembers: &wire.GetMembers{}}})
}

// RequestMembers sends a request that the list of all metadata servers answers.
func RequestMembers(ctx context.Context, c *cli.Connection, req *wire.MetaRequest) (*wire.MembersReply, error) {
	resp, err := rawclient.Of(c).Meta(ctx, req)
	if err != nil {
		return nil, err
	}
	return resp.GetMembers(), nil
}
