package state_test

import (
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// stepRewrite makes a mover write some bytes of a file's stripes into a new stripe. The state
// refuses it if a clone shares a table of the file. The bytes of the file stay the same in any
// case.
func (m *model) stepRewrite() {
	rng := m.rng
	m.rng = m.dice
	defer func() { m.rng = rng }()
	f := m.pick(func(n *modelNode) bool { return isFile(n) && len(n.cells) > 0 })
	if f == nil {
		return
	}
	ex := m.ok(m.tier.c.extents(f.id, 0, 0)).GetExtents()
	op, stripes := m.someExtents(ex)
	if len(op.Was) == 0 {
		return
	}
	jobs := m.ok(m.applyBoth(&statepb.Command{Op: &statepb.Command_CreateJobs{CreateJobs: &statepb.CreateJobs{Jobs: []*wire.Job{
		{Kind: rewriteJob, Inode: f.id, Rewrite: &wire.RewriteTask{End: uint64(len(f.cells)), Stripes: stripes}}}}}})).GetJobs().GetJobs()
	if len(jobs) == 0 {
		return // it has no name
	}
	old := m.bench.node
	m.bench.node = "n1"
	defer func() { m.bench.node = old }()
	if m.rewriter == nil {
		m.rewriter = m.open(func(op *wire.OpenSession) { op.Node, op.Role = "n1", "chunkserver" })
	}
	leased := m.ok(m.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{
		Host: "n1", Kinds: []wire.JobKind{rewriteJob}, Max: 1}}})).GetJobs().GetJobs()
	if len(leased) != 1 || leased[0].Id != jobs[0].Id {
		m.t.Fatalf("leased %v, made %v", leased, jobs)
	}
	g := m.rewriter.grant(f.id, 1)
	op.Job, op.LeaseEpoch, op.Inode = leased[0].Id, leased[0].LeaseEpoch, f.id
	var cells []modelCell
	for _, e := range op.Was {
		op.Extents = append(op.Extents, extent(e.Offset, e.Length, g, uint64(len(cells))))
		cells = append(cells, m.bytesOf(e, ex.Objects)...)
	}
	op.Stripes = []*wire.Stripe{stripe(g, uint64(len(cells)), m.devices()...)}
	m.staged[g] = cells
	commit := func() string {
		req := m.rewriter.request(&wire.MetaRequest{Op: &wire.MetaRequest_CommitRewrite{CommitRewrite: op}})
		return kind(m.applyBoth(&statepb.Command{Caller: &statepb.Caller{Node: "n1", Role: "chunkserver"}, Op: &statepb.Command_Request{Request: req}}))
	}
	first := commit()
	if second := commit(); second != first { // the answer was lost, and its number with it
		m.t.Fatalf("a rewriting was answered %s and then %s", first, second)
	}
	m.ok(m.applyBoth(&statepb.Command{Caller: &statepb.Caller{Node: "n1", Role: "chunkserver"}, Op: &statepb.Command_Request{Request: m.rewriter.request(
		&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: g}}})}}))
	switch first {
	case "ok":
		m.rewritten++
	case "stale", "conflict": // a clone shares it; or the result would survive fewer failures
		delete(m.staged, g)
	default:
		m.t.Fatalf("a rewriting was answered %s", first)
	}
	m.ok(m.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{
		Id: leased[0].Id, LeaseEpoch: leased[0].LeaseEpoch}}}))
}

// someExtents draws extents, and parts of extents, of stripes that a file has.
func (m *model) someExtents(ex *wire.ExtentsReply) (op *wire.CommitRewrite, stripes []uint64) {
	op = &wire.CommitRewrite{}
	seen := map[uint64]bool{}
	take := m.rng.IntN(2) == 0
	for _, e := range ex.Extents {
		if m.rng.IntN(4) == 0 {
			take = !take
		}
		if !take || e.Object != 0 || len(seen) == 60 || len(op.Was) == 200 {
			continue
		}
		off, length := uint64(0), e.Length
		if m.rng.IntN(4) == 0 {
			off = m.rng.Uint64N(e.Length)
			length = 1 + m.rng.Uint64N(e.Length-off)
		}
		op.Was = append(op.Was, extent(e.Offset+off, length, e.Stripe, e.StripeOffset+off))
		if !seen[e.Stripe] {
			seen[e.Stripe] = true
			stripes = append(stripes, e.Stripe)
		}
	}
	return op, stripes
}
