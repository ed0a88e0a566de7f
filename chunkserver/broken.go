package chunkserver

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
)

// keeper is a device's tier, with the optional interfaces that this package uses.
type keeper interface {
	tiers.Tier
	tiers.Viewer
	tiers.Deleter
}

// brokenTier replaces the tier of a device that could not be opened because its
// disk returns errors. It holds nothing and returns the error. The host's other
// devices stay in service, and the metadata service learns that this one is out.
type brokenTier struct{ err error }

func (b brokenTier) Put(context.Context, tiers.Header, []byte, []uint32) error { return b.err }

func (b brokenTier) Get(context.Context, moraine.ChunkID, int64, []byte) (tiers.Header, error) {
	return tiers.Header{}, b.err
}

func (b brokenTier) View(context.Context, moraine.ChunkID, int64, int64) (*tiers.View, error) {
	return nil, b.err
}

func (b brokenTier) Delete(context.Context, moraine.ChunkID, moraine.LayoutVersion) error {
	return b.err
}

func (b brokenTier) DeleteAll(context.Context, []tiers.Deletion) error { return b.err }

func (b brokenTier) List(context.Context, moraine.ChunkID, int) ([]tiers.Header, error) {
	return nil, b.err
}

func (b brokenTier) Usage() tiers.Usage { return tiers.Usage{} }
func (b brokenTier) Err() error         { return b.err }
func (b brokenTier) Close() error       { return nil }
