package state_test

import (
	"strings"
	"testing"

	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// TestEachCommandNeedsItsSession sends each command without a session, and each other request as a
// command. The state machine refuses what the options in metadata.proto exclude.
func TestEachCommandNeedsItsSession(t *testing.T) {
	b := newCluster(t, 1)
	c := b.open(nil)
	for _, o := range ops.All() {
		if o.Effect != wire.Operation_COMMAND {
			if k := kind(c.do(o.New())); k != "not implemented" {
				t.Errorf("%s, a %v, as a command: %s", o.Name, o.Effect, k)
			}
			continue
		}
		resp := b.as(c.node, "admin", o.New())
		if refused := strings.Contains(resp.GetError().GetText(), "needs a session"); refused != o.Session || kind(resp) == "not implemented" {
			t.Errorf("%s without a session: %v", o.Name, resp)
		}
	}
	if k := kind(b.as(c.node, "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetPolicy{SetPolicy: &wire.SetPolicy{Inode: c.root, Policy: &wire.Policy{}}}})); k != "invalid argument" {
		t.Errorf("a policy without a session: %s", k)
	}
	b.check()
}
