package client

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// TierStatus describes the object tier as a whole.
type TierStatus struct {
	// Objects is how many objects the cluster has made, and Bytes what is in them.
	Objects, Bytes uint64
	// The live jobs by kind.
	QueuedFlushes, QueuedStages, QueuedEvictions, QueuedDeletions uint64
	// Intents counts the announced changes of objects that are not done.
	Intents uint64
	// UnsettledKeys counts the keys of the bucket with such a change.
	UnsettledKeys uint64
	// Buckets has each bucket that hosts use, once. Hosts is how many hosts have one.
	Buckets []string
	Hosts   uint64
	// Stuck counts the live jobs that fail again and again.
	Stuck uint64
	// StuckJob is the oldest of them, 0 if none was found, and StuckError its last error.
	StuckJob   moraine.JobID
	StuckError string
}

// Tier returns the status of the object tier.
func (c *Client) Tier(ctx context.Context) (TierStatus, error) {
	resp, err := c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetTier{GetTier: &wire.GetTier{}}})
	if err == nil && resp.GetTier() == nil {
		err = retry.BadReply("get tier")
	}
	if err != nil {
		return TierStatus{}, retry.Wrap("client.Tier", "", err)
	}
	t := resp.GetTier()
	return TierStatus{Objects: t.Objects, Bytes: t.Bytes, QueuedFlushes: t.QueuedFlushes, QueuedStages: t.QueuedStages,
		QueuedEvictions: t.QueuedEvictions, QueuedDeletions: t.QueuedDeletions, Intents: t.Intents, UnsettledKeys: t.UnsettledKeys,
		Buckets: t.Buckets, Hosts: t.Hosts, Stuck: t.Stuck, StuckJob: moraine.JobID(t.StuckJob), StuckError: t.StuckError}, nil
}
