package state_test

import (
	"errors"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// A request of a later release is refused until the state has that release's level, and works from
// then on. The level never falls. A build of the present release stops at either command.
func TestFutureRequest(t *testing.T) {
	b := newBench(t)
	b.m = state.NewFuture(0)
	c := b.open(nil)
	dir := c.mkdir(c.root, "d")
	touch := func() *wire.MetaRequest {
		req, err := state.FutureRequest(&wire.SetAttr{Inode: dir, Valid: uint32(wire.SetAttrField_SET_ATTR_MTIME), Mtime: 77})
		if err != nil {
			t.Fatal(err)
		}
		return req
	}
	level := func(n uint64) *statepb.Command {
		return &statepb.Command{Op: &statepb.Command_SetFeatureLevel{SetFeatureLevel: &statepb.SetFeatureLevel{Level: n}}}
	}
	stops := func(cmd *statepb.Command) {
		t.Helper()
		if _, err := state.New(0).Apply(b.kv.Clone(), b.index+1, b.command(cmd)); !errors.Is(err, moraine.NewerFormat) {
			t.Errorf("a build of level %d applied it: %v", moraine.FeatureLevel, err)
		}
	}
	admin := func() *wire.MetaResponse { return b.as("a1", "admin", touch()) }
	b.wants(admin(), moraine.Unimplemented)
	if have := c.attr(dir).Mtime; have == 77 {
		t.Error("what was refused took effect")
	}
	stops(level(state.FutureLevel))
	b.ok(b.apply(level(state.FutureLevel)).Response)
	b.ok(b.apply(level(state.FutureLevel)).Response)
	b.wants(b.apply(level(moraine.FeatureLevel)).Response, moraine.InvalidArgument)
	stops(&statepb.Command{Op: &statepb.Command_Request{Request: touch()}})
	b.ok(admin())
	if have := c.attr(dir).Mtime; have != 77 {
		t.Errorf("mtime %d", have)
	}
	b.check()
	b.replays()
}
