package state_test

import (
	"cmp"
	"slices"

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
	part := &rewrittenPart{}
	if stripes := m.addPart(part, f, 200); len(stripes) > 0 && !slices.Contains(stripes, 0) {
		m.rewritten += len(m.commitRewrite(part, &wire.Job{Inode: f.id, Rewrite: &wire.RewriteTask{End: uint64(len(f.cells)), Stripes: stripes}}))
	}
}

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
	part, task := &rewrittenPart{}, &wire.RewriteTask{}
	for _, f := range files {
		if len(m.addPart(part, f, 10)) > 0 {
			task.Files = append(task.Files, f.id)
		}
	}
	if len(task.Files) > 0 {
		m.packed += len(m.commitRewrite(part, &wire.Job{Rewrite: task}))
	}
}

// rewrittenPart is what a mover writes into one new stripe.
type rewrittenPart struct {
	files []*wire.RewrittenFile
	cells []modelCell
}

// addPart adds some extents of a file, and returns their stripes; 0 is the state.
func (m *model) addPart(part *rewrittenPart, f *modelNode, most int) (stripes []uint64) {
	ex := m.ok(m.tier.c.extents(f.id, 0, 0)).GetExtents()
	was := m.someExtents(ex)
	p := &wire.RewrittenFile{Inode: f.id, Was: was[:min(len(was), most)]}
	for _, e := range p.Was {
		p.Extents = append(p.Extents, extent(e.Offset, e.Length, 0, uint64(len(part.cells))))
		part.cells = append(part.cells, m.bytesOf(e, ex.Objects)...)
		if !slices.Contains(stripes, e.Stripe) {
			stripes = append(stripes, e.Stripe)
		}
	}
	if len(p.Was) > 0 {
		part.files = append(part.files, p)
	}
	return stripes
}

// commitRewrite makes a job, and commits what its mover wrote, and then commits it again as if the
// answer had been lost. It returns the files that changed.
func (m *model) commitRewrite(part *rewrittenPart, job *wire.Job) []uint64 {
	m.t.Helper()
	job.Kind = rewriteJob
	jobs := m.ok(m.applyBoth(&statepb.Command{Op: &statepb.Command_CreateJobs{CreateJobs: &statepb.CreateJobs{Jobs: []*wire.Job{job}}}})).GetJobs().GetJobs()
	if len(jobs) == 0 {
		return nil // none has a name
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
	if named := jobs[0].GetRewrite().GetFiles(); len(named) > 0 {
		part.files = slices.DeleteFunc(part.files, func(f *wire.RewrittenFile) bool { return !slices.Contains(named, f.Inode) })
	}
	request := func(req *wire.MetaRequest) *wire.MetaResponse {
		return m.applyBoth(&statepb.Command{Caller: &statepb.Caller{Node: "n1", Role: "chunkserver"}, Op: &statepb.Command_Request{Request: m.rewriter.request(req)}})
	}
	g := m.rewriter.grant(part.files[0].Inode, 1)
	for _, f := range part.files {
		for _, e := range f.Extents {
			e.Stripe = g
		}
	}
	op := &wire.CommitRewrite{Job: leased[0].Id, LeaseEpoch: leased[0].LeaseEpoch, Files: part.files,
		Stripes: []*wire.Stripe{stripe(g, uint64(len(part.cells)), m.devices()...)}}
	m.staged[g] = part.cells
	first := request(&wire.MetaRequest{Op: &wire.MetaRequest_CommitRewrite{CommitRewrite: op}})
	second := request(&wire.MetaRequest{Op: &wire.MetaRequest_CommitRewrite{CommitRewrite: op}})
	if kind(first) != kind(second) || !slices.Equal(first.GetRewrite().GetRewritten(), second.GetRewrite().GetRewritten()) {
		m.t.Fatalf("a rewriting was answered %v and then %v", first, second)
	}
	m.ok(request(&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: g}}}))
	switch kind(first) {
	case "ok":
	case "stale", "conflict": // clones share every table; or the result would survive fewer failures
		delete(m.staged, g)
	default:
		m.t.Fatalf("a rewriting was answered %v", first)
	}
	m.ok(m.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{
		Id: leased[0].Id, LeaseEpoch: leased[0].LeaseEpoch}}}))
	return first.GetRewrite().GetRewritten()
}

// someExtents draws extents, and parts of extents, of stripes that a file has.
func (m *model) someExtents(ex *wire.ExtentsReply) (out []*wire.Extent) {
	seen := map[uint64]bool{}
	take := m.rng.IntN(2) == 0
	for _, e := range ex.Extents {
		if m.rng.IntN(4) == 0 {
			take = !take
		}
		if !take || e.Object != 0 || len(seen) == 60 || len(out) == 200 {
			continue
		}
		off, length := uint64(0), e.Length
		if m.rng.IntN(4) == 0 {
			off = m.rng.Uint64N(e.Length)
			length = 1 + m.rng.Uint64N(e.Length-off)
		}
		part := extent(e.Offset+off, length, e.Stripe, e.StripeOffset+off)
		if part.Inline = e.Inline; e.Inline != 0 {
			part.Content = e.Content[off : off+length]
		}
		out = append(out, part)
		seen[e.Stripe] = true
	}
	return out
}
