package state_test

import (
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/transport/wire"
)

// removeNew makes a directory with content and removes it.
func (c *client) removeNew(name string) *wire.MetaResponse {
	c.t.Helper()
	c.mkdir(c.mkdir(c.root, name), "below")
	return c.removeTree(c.root, name)
}

// The number of running removals, clones and concatenations of a session is bounded. Other
// requests, and those that need no job, still succeed. When some jobs end there is room again.
func TestASessionHasSoManyJobs(t *testing.T) {
	b := newCluster(t, 1)
	c, other := b.open(nil), b.open(nil)
	_, ranges := c.parts(2, 9, 150)
	src := c.mkdir(c.root, "src")
	b.ok(c.cloneTree(src, c.root, "clone"))
	for i := 1; i < jobs.MaxSessionJobs; i++ {
		b.ok(c.removeNew("x"))
	}
	b.check()
	into := c.unnamed()
	full := moraine.Busy.String()
	concat := func(c *client) *wire.MetaResponse {
		return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Concat{Concat: &wire.Concat{Inode: into, Ranges: ranges,
			Link: &wire.LinkTarget{Parent: c.root, Name: "whole"}}}})
	}
	for what, resp := range map[string]*wire.MetaResponse{
		"a removal": c.removeNew("y"), "a clone": c.cloneTree(src, c.root, "again"), "a concatenation": concat(c),
	} {
		if k := kind(resp); k != full {
			t.Errorf("%s past the bound is answered %q", what, k)
		}
	}
	if !c.exists("/y/below") {
		t.Error("a refused removal removed something")
	}
	c.mkdir(c.root, "empty")
	b.ok(c.removeTree(c.root, "empty"))
	b.ok(other.removeNew("z"))
	b.check()
	b.settleJobs()
	b.check()
	joined := concat(c).GetJobs().Jobs[0]
	for b.runLeaderJob(wire.JobKind_JOB_KIND_CONCAT, 1000) {
	}
	if !c.exists("/whole") {
		t.Error("the concatenation is not there", c.ended(joined.Id))
	}
	b.ok(c.removeTree(c.root, "y"))
	// Running jobs continue after the session ends.
	b.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}}))
	b.check()
	b.settleJobs()
	b.check()
}
