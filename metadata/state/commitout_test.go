package state_test

import (
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// TestCommitOfWhatIsOut: devices go out between the writes of a stripe's chunks and its commit.
// While too few chunks are left to read the stripe, the commit changes nothing. The same commit
// succeeds once enough are back, and the stripe is queued for repair.
func TestCommitOfWhatIsOut(t *testing.T) {
	const inState, outState = wire.DeviceState_DEVICE_STATE_IN, wire.DeviceState_DEVICE_STATE_OUT
	for _, tt := range []struct {
		name    string
		chunks  []uint32
		out     []uint32
		refused bool
		silent  bool // the devices are out because their hosts are silent
	}{
		{"copies, all out", []uint32{1, 2}, []uint32{1, 2}, true, false},
		{"copies, one out", []uint32{1, 2}, []uint32{1}, false, false},
		{"2 of 3, two out", []uint32{1, 2, 3}, []uint32{1, 3}, true, false},
		{"2 of 3, one out", []uint32{1, 2, 3}, []uint32{3}, false, false},
		{"copies, all out with hosts that may come back", []uint32{1, 2}, []uint32{1, 2}, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			for _, host := range []string{"n1", "n2", "n3"} {
				b.registerHost(host, 1)
			}
			c := b.open(nil)
			f := c.mkfile(c.root, "f")
			s := stripe(c.grant(f, 1), 10, tt.chunks...)
			s.Scheme = &wire.Scheme{K: uint32(len(tt.chunks) - 1), M: 1}
			commit := func() *wire.MetaResponse {
				return c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3,
					Stripes: []*wire.Stripe{s}, Extents: []*wire.Extent{extent(0, 10, s.Id, 0)}})
			}
			for _, d := range tt.out {
				reason := "test"
				if tt.silent {
					reason = record.ReasonSilent
				}
				c.ok(c.as("admin", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{Device: d, State: outState, Reason: reason}}}))
			}
			if tt.refused {
				b.wants(commit(), moraine.Stale)
				if size := c.attr(f).Size; size != 0 {
					t.Fatalf("%d bytes of what was refused", size)
				}
				b.check()
				c.setState(tt.out[0], inState)
			}
			if r := b.ok(commit()).GetCommit(); r.Degraded != 1 {
				t.Fatalf("%v", r)
			}
			b.check()
		})
	}
}
