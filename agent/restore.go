package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// maxPage bounds the tensors of one page.
const maxPage = 10_000

// sharedBytes bounds the memory in which the ranks of the node share what they read from the cluster.
// It comes on top of the arenas.
const sharedBytes = 512 << 20

// errPage ends a page of tensors that is full.
var errPage = errors.New("the page is full")

// restorer is what a connection reads: an open step, and the slot of its last Fetch.
type restorer struct {
	k  *ckpt.Checkpoint
	of runOf
	// began is when the trainer asked for the step, fetched when it had the bytes of its last Fetch.
	began, fetched time.Time
	node           []*slot // of parts of the step that this node has
	slot           *slot
	bad            int // how many bad ranges of the step are reported
}

// open makes k the step that is read. Several ranks share their reads; a single one would copy each
// byte once more for nothing.
func (r *restorer) open(a *Agent, k *ckpt.Checkpoint, node []*slot, world uint32) {
	if world > 1 {
		k.ShareReads(a.shared)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.restoring++
	r.k, r.node, r.bad = k, node, 0
}

// close releases the step and gives the slot back. A trainer that still has it mapped keeps its
// bytes: nobody else gets them. The last one of the node gives back what ranks have shared.
func (r *restorer) close(a *Agent) {
	if r.k != nil {
		_ = r.k.Close() // only read
		r.k = nil
		a.mu.Lock()
		if !r.fetched.IsZero() {
			a.figures.restored(r.of, r.fetched.Sub(r.began))
		}
		a.restoring--
		if a.restoring == 0 {
			a.shared.Forget()
		}
		a.mu.Unlock()
		r.unread(a)
	}
	r.drop(a.pool)
}

// unread ends the reading of parts in the memory of this node, which the agent has mapped no longer.
func (r *restorer) unread(a *Agent) {
	a.unread(r.node)
	r.node = nil
}

func (r *restorer) drop(p *pool) {
	if r.slot != nil {
		p.discard(r.slot)
		r.slot = nil
	}
}

// makeRoom gives back the memory of a restore, for the saves that follow: nothing is mapped until the
// next Fetch, and further reads come from the cluster.
func (r *restorer) makeRoom(a *Agent) {
	r.drop(a.pool)
	if r.k != nil {
		r.k.UseNode(nil)
		r.unread(a)
	}
}

func (c *conn) resolve(ctx context.Context, req *agentproto.Resolve) (*agentproto.ResolveReply, error) {
	if c.run == nil {
		return nil, c.invalid("resolve before open")
	}
	c.restore.close(c.a)
	c.restore.of, c.restore.began, c.restore.fetched = runOf{c.uid, c.run.key.path}, time.Now(), time.Time{}
	k, skipped, err := c.find(ctx, req)
	if err != nil {
		return nil, err
	}
	parts, slots := c.a.nodeParts(c.uid, c.run.open.Run, k.Info)
	k.UseNode(parts)
	c.restore.open(c.a, k, slots, c.run.open.World)
	reply := &agentproto.ResolveReply{Attempt: k.Info.Attempt, Step: k.Info.Step, World: k.World(), Level: k.Info.Level.String(),
		Path: k.Info.Path, Bytes: k.Info.Bytes, Skipped: skipped}
	for _, f := range k.Files() {
		if f.Kind == ckpt.BlobFile {
			reply.Blobs = append(reply.Blobs, agentproto.BlobInfo{Rank: f.Rank, Name: f.Blob, Bytes: f.Size})
		}
	}
	return reply, nil
}

// find opens the step that req selects.
func (c *conn) find(ctx context.Context, req *agentproto.Resolve) (k *ckpt.Checkpoint, skipped []agentproto.Skipped, err error) {
	opts := ckpt.ResolveOptions{Step: req.Step, Exact: req.Exact, Fix: req.Fix, Tag: req.Tag, Healthy: req.Healthy}
	if req.Level != "" {
		if opts.Level, err = moraine.ParseLevel(req.Level); err != nil {
			return nil, nil, err
		}
	}
	if req.Before != nil {
		opts.Before = ckpt.StepRef{Attempt: req.Before.Attempt, Step: req.Before.Step}
	}
	if !req.Fallback {
		k, err = c.run.run.Resolve(ctx, opts)
		return k, nil, err
	}
	opens := func(*ckpt.Checkpoint) error { return nil }
	k, err = c.run.run.Restorable(ctx, opts, opens, func(info ckpt.StepInfo, why error) {
		skipped = append(skipped, agentproto.Skipped{Attempt: info.Attempt, Step: info.Step, Error: *agentproto.ErrorOf(why)})
	})
	return k, skipped, err
}

// nodeParts returns the sealed parts of a step that the node has, and their slots, to which nobody
// writes until unread.
func (a *Agent) nodeParts(uid uint32, path string, info ckpt.StepInfo) (map[uint32]ckpt.NodePart, []*slot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	parts, slots := map[uint32]ckpt.NodePart{}, []*slot(nil)
	for key, p := range a.parts {
		if key.uid == uid && key.path == path && key.attempt == info.Attempt && key.step == info.Step && p.slot != nil && p.manifest != nil {
			p.slot.readers++
			slots = append(slots, p.slot)
			parts[key.rank] = ckpt.NodePart{Slot: p.slot.file.Name(), Bytes: int64(len(p.slot.mem)), Seal: p.manifest.Seal}
		}
	}
	return parts, slots
}

func (c *conn) tensors(ctx context.Context, req *agentproto.Tensors) (*agentproto.TensorsReply, error) {
	if c.restore.k == nil {
		return nil, c.invalid("tensors before resolve")
	}
	limit := min(max(req.Limit, 0), maxPage)
	if limit == 0 {
		limit = 1000
	}
	reply := &agentproto.TensorsReply{Tensors: []agentproto.TensorInfo{}}
	err := c.restore.k.TensorsAfter(ctx, req.After, func(t *ckpt.TensorInfo) error {
		if len(reply.Tensors) == limit {
			return errPage
		}
		reply.Tensors = append(reply.Tensors, agentproto.TensorInfo{Name: t.Name, DType: t.DType.String(), Shape: t.Shape})
		return nil
	})
	if err != nil && !errors.Is(err, errPage) {
		return nil, err
	}
	if len(reply.Tensors) == 0 && req.After == "" {
		// A reader would take a step whose tensors only a framework knows for an empty one.
		if _, err := c.restore.k.Tensor(ctx, ""); errors.Is(err, moraine.Unimplemented) {
			return nil, err
		}
	}
	return reply, nil
}

// fetch reads into a slot of its own. It does not wait for memory that saves use: it fails with
// Busy.
func (c *conn) fetch(ctx context.Context, req *agentproto.Fetch) (*agentproto.FetchReply, *os.File, error) {
	switch {
	case c.restore.k == nil:
		return nil, nil, c.invalid("fetch before resolve")
	case req.Bytes <= 0:
		return nil, nil, c.invalid("a fetch of %d bytes", req.Bytes)
	}
	s, err := c.fetchSlot(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	before, read := c.restore.k.NodeBytes(), c.restore.k.BytesRead()
	reply, err := fetchInto(ctx, c.restore.k, req, s.mem)
	c.reportBad()
	if err != nil {
		c.restore.drop(c.a.pool)
		return nil, nil, err
	}
	c.restore.fetched = time.Now()
	reply.Slot, reply.FromNode = s.name, c.restore.k.NodeBytes()-before
	c.a.metrics.RestoredBytes.WithLabelValues("node").Add(float64(reply.FromNode))
	c.a.metrics.RestoredBytes.WithLabelValues("cluster").Add(float64(c.restore.k.BytesRead() - read))
	return reply, s.file, nil
}

// fetchSlot makes c.restore.slot one that has room for the bytes of req. Only a trainer that has read the
// last one's bytes gets the same: pages that both have mapped already cost no time.
func (c *conn) fetchSlot(ctx context.Context, req *agentproto.Fetch) (*slot, error) {
	if s := c.restore.slot; req.Reuse && s != nil && int64(len(s.mem)) >= req.Bytes && s.whole() == nil {
		return s, nil
	}
	c.restore.drop(c.a.pool)
	s, err := c.a.pool.take(ctx, want{op: "agent.Fetch", uid: c.uid, bytes: req.Bytes, lent: c.lent()}, func() (bool, bool) { return c.a.spare(nil, c.uid) })
	if err != nil {
		return nil, err
	}
	c.a.pool.lend(s)
	c.restore.slot = s
	return s, nil
}

// fetchInto reads what req names into mem.
func fetchInto(ctx context.Context, k *ckpt.Checkpoint, req *agentproto.Fetch, mem []byte) (*agentproto.FetchReply, error) {
	place := func(name string, at, n int64) ([]byte, error) {
		if at < 0 || n < 0 || at > int64(len(mem)) || n > int64(len(mem))-at {
			return nil, &moraine.Error{Op: "agent.Fetch", Ref: name, Kind: moraine.InvalidArgument,
				Err: fmt.Errorf("%d bytes at %d are not within the slot's %d", n, at, len(mem))}
		}
		return mem[at : at+n], nil
	}
	var slices []ckpt.SliceRequest
	for _, s := range req.Slices {
		dst, err := place(s.Name, s.At, s.Bytes)
		if err != nil {
			return nil, err
		}
		slices = append(slices, ckpt.SliceRequest{Name: s.Name, Offset: s.Offset, Shape: s.Shape, Dst: dst})
	}
	if err := k.Restore(ctx, slices); err != nil {
		return nil, err
	}
	reply := &agentproto.FetchReply{}
	for _, b := range req.Blobs {
		dst, err := place(b.Name, b.At, b.Bytes)
		if err != nil {
			return nil, err
		}
		if err := k.ReadBlobInto(ctx, b.Rank, b.Name, dst); err != nil { // a blob may be larger than all memory
			return nil, err
		}
	}
	return reply, nil
}
