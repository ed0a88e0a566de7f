package state_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/statetest"
	"github.com/morainefs/moraine/transport/wire"
)

// Two partitions share one store: each machine uses only its own keys, numbers do not collide, and
// each refuses requests for the other.
func TestTwoPartitionsInOneStore(t *testing.T) {
	kv := statetest.NewKV()
	var benches []*bench
	for p := range moraine.Partition(2) {
		b := &bench{t: t, m: state.New(p), kv: kv, wall: 1e9, node: "c1"}
		b.fence = &statetest.Fenced{KV: kv, Prefix: []byte{0, byte(p)}}
		b.ok(b.apply(&statepb.Command{Op: &statepb.Command_Init{Init: &statepb.Init{Cluster: make([]byte, 16), Incarnation: 1}}}).Response)
		b.partition = uint32(p)
		for _, h := range []string{"n1", "n2", "n3"} {
			b.registerHost(h, 1)
		}
		benches = append(benches, b)
	}
	zero, one := benches[0], benches[1]
	c := zero.open(nil)
	dir := c.mkdir(c.root, "d")
	f := c.mkfile(dir, "f")
	g := c.grant(f, 4)
	c.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Level: 3,
		Stripes: []*wire.Stripe{stripe(g, 9, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 9, g, 0)}}))
	c.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: f}}}))
	c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: c.root, Name: "d"}}}))
	zero.tick(1000)
	zero.check()
	// A session of the other partition gets that partition's numbers and tree.
	d := one.open(nil)
	if p := moraine.ID(d.id).Partition(); p != 1 {
		t.Errorf("session %x is of partition %d", d.id, p)
	}
	one.tick(1000)
	one.check()
	zero.check()
	req := createReq(c.root, "x")
	req.Partition = 1
	if got := kind(zero.as("c1", "client", req)); got != "misrouted" {
		t.Errorf("a request for another partition: %s", got)
	}
}

// own returns the pairs of the bench's partition.
func (b *bench) own() *statetest.KV {
	if b.fence == nil {
		return b.kv.Clone()
	}
	out := statetest.NewKV()
	lo := append([]byte(nil), b.fence.Prefix...)
	hi := append([]byte(nil), b.fence.Prefix...)
	hi[1]++
	err := b.kv.Scan(lo, hi, func(key, value []byte) bool {
		return out.Set(append([]byte(nil), key...), append([]byte(nil), value...)) == nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// partitions returns benches of two partitions that share a store, with hosts.
func partitions(t *testing.T, hosts int) []*bench {
	kv := statetest.NewKV()
	var out []*bench
	for p := range moraine.Partition(2) {
		b := &bench{t: t, m: state.New(p), kv: kv, wall: 1_000_000_000, node: "c1", partition: uint32(p),
			fence: &statetest.Fenced{KV: kv, Prefix: []byte{0, byte(p)}}}
		b.ok(b.apply(&statepb.Command{Op: &statepb.Command_Init{Init: &statepb.Init{Cluster: make([]byte, 16), Incarnation: 1}}}).Response)
		for h := range hosts {
			b.registerHost(fmt.Sprintf("n%d", h+1), 1)
		}
		out = append(out, b)
	}
	return out
}

// Random commands on two partitions of one store, in turn, have the same effect as on a partition
// alone. The test compares each with its own model and with a replica that does not have the other
// partition. Neither touches a key of the other.
func TestRandomCommandsOnTwoPartitions(t *testing.T) {
	first := testseed.First(t)
	for seed := first; seed < first+uint64(testseed.Runs(t, 1, 10)); seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			runTwoPartitions(t, seed, testseed.Of(fewCommands, 3000))
		})
	}
}

func runTwoPartitions(t *testing.T, seed uint64, steps int) {
	rng := rand.New(rand.NewPCG(seed, 500))
	var models []*model
	for p, b := range partitions(t, 7) {
		models = append(models, newModelOf(b, 2*seed+uint64(p)))
	}
	for n := range steps {
		models[rng.IntN(2)].step()
		if n%300 == 299 {
			models[0].compare()
			models[1].compare()
		}
	}
	for _, m := range models {
		m.compare()
		m.settleTier()
	}
}

// The state refuses a request that would link two partitions, as a whole, and gives the same answer
// when it is retried.
func TestNothingCrossesPartitions(t *testing.T) {
	two := partitions(t, 1)
	c, d := two[0].open(nil), two[1].open(nil)
	here, there := c.mkdir(c.root, "d"), d.mkdir(d.root, "d")
	f, g := c.mkfile(here, "f"), d.mkfile(there, "g")
	unnamed := c.unnamed()
	before := two[1].own()
	for what, req := range map[string]*wire.MetaRequest{
		"a rename to it":          {Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: here, Name: "f", NewParent: there, NewName: "f"}}},
		"a rename from it":        {Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: there, Name: "g", NewParent: here, NewName: "g"}}},
		"a link to it":            {Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: f, Parent: there, Name: "f"}}},
		"a link from it":          {Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: g, Parent: here, Name: "g"}}},
		"a clone of a file of it": {Op: &wire.MetaRequest_Clone{Clone: &wire.Clone{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Ranges: []*wire.CloneRange{{Inode: g}}}}},
		"a clone of its tree":     {Op: &wire.MetaRequest_CloneTree{CloneTree: &wire.CloneTree{Inode: there, Parent: here, Name: "copy"}}},
		"a clone into it":         {Op: &wire.MetaRequest_CloneTree{CloneTree: &wire.CloneTree{Inode: here, Parent: there, Name: "copy"}}},
		"a part of it":            {Op: &wire.MetaRequest_Concat{Concat: &wire.Concat{Inode: unnamed, Ranges: []*wire.CloneRange{{Inode: f}, {Inode: g}}, Link: &wire.LinkTarget{Parent: here, Name: "w"}}}},
		"a name in it":            {Op: &wire.MetaRequest_Concat{Concat: &wire.Concat{Inode: unnamed, Link: &wire.LinkTarget{Parent: there, Name: "w"}}}},
		"its parts consumed":      {Op: &wire.MetaRequest_Concat{Concat: &wire.Concat{Inode: unnamed, Link: &wire.LinkTarget{Parent: here, Name: "w"}, Consume: there}}},
		"a commit named in it":    {Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Inode: unnamed, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Link: &wire.LinkTarget{Parent: there, Name: "w"}}}},
	} {
		req = c.request(req)
		if k := kind(c.send(req).Response); k != "crosses partitions" {
			t.Errorf("%s: %s", what, k)
		}
		if again := c.send(req); kind(again.Response) != "crosses partitions" || !again.Repeated {
			t.Errorf("%s, again: %s", what, kind(again.Response))
		}
	}
	if d := statetest.Diff(before, two[1].own()); d != "" {
		t.Errorf("the other partition changed: %s", d)
	}
	two[0].check()
	two[1].check()
}

// Jobs, sessions and answers are each partition's own.
func TestPartitionsHaveTheirOwnJobs(t *testing.T) {
	two := partitions(t, 1)
	var clients []*client
	for _, b := range two {
		c := b.open(nil)
		src := c.sourceTree()
		c.ok(c.cloneTree(src, c.root, "dst"))
		dir, ranges, _ := c.smallParts(600)
		c.concatJobOf(c.unnamed(), ranges, dir, false)
		b.recount()
		clients = append(clients, c)
	}
	for more := true; more; {
		more = false
		for _, b := range two {
			for _, kind := range []wire.JobKind{wire.JobKind_JOB_KIND_CLONE_TREE, wire.JobKind_JOB_KIND_CONCAT, wire.JobKind_JOB_KIND_RECOUNT, wire.JobKind_JOB_KIND_REMOVE_TREE} {
				more = b.runLeaderJob(kind, 100) || more
			}
		}
		two[0].check()
		two[1].check()
	}
	for n, c := range clients {
		c.same("/src", "/dst")
		if p := moraine.ID(c.walkTo("/whole")).Partition(); int(p) != n || c.exists("/parts") {
			t.Errorf("the whole of partition %d is of %d", n, p)
		}
	}
	a, b := clients[0], clients[1]
	req := a.request(createReq(a.root, "x"))
	a.ok(a.send(req).Response)
	req.Partition = 1
	if k := kind(b.send(req).Response); k != "session expired" {
		t.Errorf("a session of the other partition: %s", k)
	}
}

// The state refuses a mutation with another routing epoch than the present one, without keeping the
// refusal as an answer. With the present epoch it is applied once, under the same number.
func TestRoutingEpoch(t *testing.T) {
	b := newCluster(t, 1)
	c := b.open(nil)
	raise := func(from uint64) string {
		return kind(b.as("a", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_RaiseRouting{RaiseRouting: &wire.RaiseRouting{From: from}}}))
	}
	at := func(epoch uint64, req *wire.MetaRequest) string {
		req.RoutingEpoch = epoch
		return kind(c.send(req).Response)
	}
	first := c.request(createReq(c.root, "first"))
	first.GetCreate().Exclusive = true
	if k := at(1, first); k != "ok" {
		t.Fatalf("by the first epoch: %s", k)
	}
	for _, r := range []struct {
		from uint64
		want string
	}{{0, "invalid argument"}, {2, "invalid argument"}, {1, "ok"}, {1, "ok"}, {2, "ok"}} {
		if k := raise(r.from); k != r.want {
			t.Errorf("raised from %d: %s, want %s", r.from, k, r.want)
		}
	}
	if epoch, err := session.RoutingEpoch(b.m.View(b.kv)); epoch != 3 || err != nil {
		t.Fatalf("the epoch is %d (%v)", epoch, err)
	}
	if k := at(1, first); k != "misrouted" {
		t.Errorf("what was answered, by a stale epoch: %s", k)
	}
	if k := at(3, first); k != "ok" {
		t.Errorf("what was answered, by the present epoch: %s", k)
	}
	next := c.request(createReq(c.root, "next"))
	for _, epoch := range []uint64{1, 2, 4} {
		if k := at(epoch, next); k != "misrouted" || c.exists("/next") {
			t.Errorf("by epoch %d of 3: %s", epoch, k)
		}
	}
	if k := at(3, next); k != "ok" || !c.exists("/next") {
		t.Errorf("under the same number, by the present epoch: %s", k)
	}
	other := b.open(nil)
	closing := other.request(&wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}})
	closing.RoutingEpoch = 1
	if k := kind(other.send(closing).Response); k != "ok" {
		t.Errorf("the end of a session, by a stale epoch: %s", k)
	}
	b.check()
	if *rewriteLogs {
		b.writeLog("v1-routing")
	}
}
