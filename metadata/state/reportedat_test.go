package state_test

import (
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/transport/wire"
)

// tellAt reports a missing chunk with the record version of its stripe.
func (b *bench) tellAt(stripe uint64, index, device, version uint32) {
	b.t.Helper()
	b.ok(b.as("a1", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: &wire.ReportBadChunks{
		Chunks: []*wire.BadChunk{{Stripe: stripe, Index: index, Device: device, Version: version, AtVersion: true, Kind: uint32(moraine.NotFound)}}}}}))
}

// TestABadChunkIsReportedByItsRecord: a report that a chunk is missing, based on an outdated stripe
// record, says nothing about the present chunk.
func TestABadChunkIsReportedByItsRecord(t *testing.T) {
	b := newBalancing(t)
	if r := b.ok(b.commitMove("n2")).GetCommitRepair(); len(r.Stale) != 0 {
		t.Fatalf("%v", r)
	}
	b.ok(b.finish("n2", ""))
	s, err := fleet.StripeByID(b.m.View(b.kv), moraine.StripeID(b.stripe))
	if err != nil || s.Version < 2 {
		t.Fatalf("%+v, %v", s, err)
	}
	for _, version := range []uint32{0, uint32(s.Version) - 1, uint32(s.Version) + 1} {
		b.tellAt(b.stripe, 1, 2, version)
		b.holds([3]uint64{}, 4)
	}
	b.tellAt(b.stripe+1, 1, 2, 1) // no such stripe
	b.tellAt(b.stripe, 1, 2, uint32(s.Version))
	b.holds([3]uint64{1, 0, 0}, 4)
	b.keepLog("v1-reported-at")
}
