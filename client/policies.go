package client

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// Policies say how the files below directories are stored. Its methods may be called
// concurrently.
type Policies struct{ c *Client }

// Policies returns the policies of the cluster's directories.
func (c *Client) Policies() Policies { return Policies{c} }

// Policy says how the files below a directory are stored. Each part with its zero value is
// inherited from the directory above.
type Policy struct {
	Flush FlushPolicy
	// Scheme is that of new stripes.
	Scheme  moraine.Scheme
	Foreign ForeignPolicy
	// Trash is how long removed files stay in the trash, a minute at least, in milliseconds; a part
	// of one is cut off. TrashOff: they do not go there. 0, or less than a millisecond: inherited.
	Trash time.Duration
	// checkpoint is the part for checkpoints, which package ckpt shows and sets. Get returns it and Set
	// passes it on.
	checkpoint *wire.CheckpointPolicy
}

// TrashOff is the Policy.Trash of a directory whose files are removed at once.
const TrashOff = time.Millisecond

// FlushPolicy says when the cluster by itself copies a file to the bucket.
type FlushPolicy uint8

// The policies of flushes.
const (
	FlushInherit  FlushPolicy = iota // as the directory above says; never, at the root
	FlushNever                       // only when a program queues it
	FlushOnCommit                    // after each commit of content
)

// ForeignPolicy says what a flush does if an object that this cluster did not write is at the
// file's key.
type ForeignPolicy uint8

// The policies of foreign objects.
const (
	ForeignInherit   ForeignPolicy = iota // as the directory above says; refuse, at the root
	ForeignRefuse                         // the flush waits for a person: see Job.Blocked
	ForeignOverwrite                      // the flush replaces the object
)

// wire returns the policy's wire form. The numbers are the same.
func (p Policy) wire() *wire.Policy {
	w := &wire.Policy{Flush: wire.FlushPolicy(p.Flush), Foreign: wire.ForeignPolicy(p.Foreign), TrashMillis: uint64(p.Trash.Milliseconds()), Checkpoint: p.checkpoint}
	if p.Scheme != (moraine.Scheme{}) {
		w.Scheme = wire.SchemeToWire(p.Scheme)
	}
	return w
}

func policyOf(w *wire.Policy) Policy {
	return Policy{Flush: FlushPolicy(w.GetFlush()), Scheme: wire.SchemeFromWire(w.GetScheme()), Foreign: ForeignPolicy(w.GetForeign()),
		Trash:      time.Duration(w.GetTrashMillis()) * time.Millisecond,
		checkpoint: w.GetCheckpoint()}
}

// InodePolicy is the policy of an inode.
type InodePolicy struct {
	// Own is the directory's own policy; empty if it has none.
	Own Policy
	// Effective is the policy that applies.
	Effective Policy
}

// Set makes policy a directory's own. An empty policy removes it, so that the directory
// inherits.
func (p Policies) Set(ctx context.Context, dir moraine.InodeID, policy Policy) error {
	_, err := p.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SetPolicy{SetPolicy: &wire.SetPolicy{
		Inode: uint64(dir), Policy: policy.wire()}}})
	return retry.Wrap("client.SetPolicy", dir.String(), err)
}

// Get returns an inode's own policy and the one in effect for it.
func (p Policies) Get(ctx context.Context, inode moraine.InodeID) (InodePolicy, error) {
	r, err := p.c.io.GetPolicy(ctx, inode)
	if err != nil {
		return InodePolicy{}, retry.Wrap("client.GetPolicy", inode.String(), err)
	}
	return InodePolicy{Own: policyOf(r.GetOwn()), Effective: policyOf(r.GetEffective())}, nil
}
