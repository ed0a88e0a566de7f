package state_test

import (
	"cmp"
	"slices"

	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// stepPack makes a mover pack parts of several files from their stripes into one new stripe. Files
// whose tables a clone shares are skipped, and the bytes of each file stay the same.
func (m *model) stepPack() {
	rng := m.rng
	m.rng = m.dice
	defer func() { m.rng = rng }()
	var files []*modelNode
	for range 5 {
		if f := m.pick(func(n *modelNode) bool { return isFile(n) && len(n.cells) > 0 }); f != nil && !slices.Contains(files, f) {
			files = append(files, f)
		}
	}
	slices.SortFunc(files, func(a, b *modelNode) int { return cmp.Compare(a.id, b.id) })
	op, cells := &wire.CommitPack{}, []modelCell(nil)
	task := &wire.RewriteTask{}
	for _, f := range files {
		ex := m.ok(m.tier.c.extents(f.id, 0, 0)).GetExtents()
		of, _ := m.someExtents(ex)
		p := &wire.PackedFile{Inode: f.id, Was: of.Was[:min(len(of.Was), 10)]}
		for _, e := range p.Was {
			p.Extents = append(p.Extents, extent(e.Offset, e.Length, 0, uint64(len(cells))))
			cells = append(cells, m.bytesOf(e, ex.Objects)...)
		}
		if len(p.Was) > 0 {
			op.Files, task.Files = append(op.Files, p), append(task.Files, f.id)
		}
	}
	if len(op.Files) == 0 {
		return
	}
	jobs := m.ok(m.applyBoth(&statepb.Command{Op: &statepb.Command_CreateJobs{CreateJobs: &statepb.CreateJobs{Jobs: []*wire.Job{
		{Kind: rewriteJob, Rewrite: task}}}}})).GetJobs().GetJobs()
	if len(jobs) == 0 {
		return // none has a name
	}
	op.Files = slices.DeleteFunc(op.Files, func(f *wire.PackedFile) bool { return !slices.Contains(jobs[0].Rewrite.Files, f.Inode) })
	m.commitPack(op, jobs[0], cells)
}

// commitPack commits a mover's packed stripe, and then commits it again as if the answer had been
// lost.
func (m *model) commitPack(op *wire.CommitPack, job *wire.Job, cells []modelCell) {
	m.t.Helper()
	old := m.bench.node
	m.bench.node = "n1"
	defer func() { m.bench.node = old }()
	if m.rewriter == nil {
		m.rewriter = m.open(func(op *wire.OpenSession) { op.Node, op.Role = "n1", "chunkserver" })
	}
	leased := m.ok(m.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{
		Host: "n1", Kinds: []wire.JobKind{rewriteJob}, Max: 1}}})).GetJobs().GetJobs()
	if len(leased) != 1 || leased[0].Id != job.Id {
		m.t.Fatalf("leased %v, made %v", leased, job)
	}
	caller := &statepb.Caller{Node: "n1", Role: "chunkserver"}
	request := func(req *wire.MetaRequest) *wire.MetaResponse {
		return m.applyBoth(&statepb.Command{Caller: caller, Op: &statepb.Command_Request{Request: m.rewriter.request(req)}})
	}
	g := m.rewriter.grant(op.Files[0].Inode, 1)
	op.Job, op.LeaseEpoch, op.Stripe = leased[0].Id, leased[0].LeaseEpoch, stripe(g, uint64(len(cells)), m.devices()...)
	for _, f := range op.Files {
		for _, e := range f.Extents {
			e.Stripe = g
		}
	}
	m.staged[g] = cells
	first := request(&wire.MetaRequest{Op: &wire.MetaRequest_CommitPack{CommitPack: op}})
	second := request(&wire.MetaRequest{Op: &wire.MetaRequest_CommitPack{CommitPack: op}})
	if kind(first) != kind(second) || !slices.Equal(first.GetPack().GetPacked(), second.GetPack().GetPacked()) {
		m.t.Fatalf("a packing was answered %v and then %v", first, second)
	}
	m.ok(request(&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: g}}}))
	switch kind(first) {
	case "ok":
		m.packed += len(first.GetPack().Packed)
	case "stale", "conflict": // a clone shares every table; or the result would survive fewer failures
		delete(m.staged, g)
	default:
		m.t.Fatalf("a packing was answered %v", first)
	}
	m.ok(m.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{
		Id: leased[0].Id, LeaseEpoch: leased[0].LeaseEpoch}}}))
}
