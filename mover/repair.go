package mover

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
)

// commitIntents is about how many filled intents one commit publishes; the service accepts 128.
const commitIntents = 48

// repair rebuilds the chunks of a job's stripes under their intents. The leader plans failed
// ones again; the mover commits the others all the same. If the mover stops anywhere, chunks
// put under uncommitted intents are dead: the service ends the intents with the job.
func (w *work) repair(ctx context.Context) error {
	r := &repairs{work: w}
	var g errgroup.Group
	g.SetLimit(w.cfg.Stripes)
	for _, task := range w.job.GetRepairs() {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			ctx := ctx
			if urgent(task) {
				ctx = client.WithUrgent(ctx)
			}
			filled, err := r.stripe(ctx, task)
			r.note(task, err)
			return r.commit(ctx, filled, tried(task)) // commit a candidate at once: clients may read it
		})
	}
	// Only commits without an answer from the service fail here.
	if err := g.Wait(); err != nil {
		return err
	}
	if err := r.commit(ctx, nil, true); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return r.verdict()
}

// repairs is the state that the stripes of one job share.
type repairs struct {
	*work

	mu     sync.Mutex
	filled []fill
	failed int
	first  error // of the failures
}

// fill is an intent, and how many bytes were put under it once its chunk is in place.
type fill struct {
	intent     *wire.Intent
	capability []byte // to read the stripe, and to put its chunk
	bytes      int64
}

// note counts a stripe that could not be repaired completely.
func (r *repairs) note(task *wire.RepairTask, err error) {
	r.done.Add(1)
	if err == nil {
		return
	}
	r.deps.Metrics.ChunkErrors.WithLabelValues(moraine.KindOf(err).String()).Inc()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed++
	if r.first == nil {
		r.first = fmt.Errorf("stripe %s: %w", moraine.StripeID(task.GetStripe().GetId()), err)
	}
}

func (r *repairs) verdict() error {
	if r.failed == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d stripes failed: %w", r.failed, len(r.job.GetRepairs()), r.first)
}

// stripe rebuilds the chunks of one stripe. It returns the intents that it filled, even if
// others failed. A stripe that has changed or died is no failure: the change has judged it
// again.
func (r *repairs) stripe(ctx context.Context, task *wire.RepairTask) ([]fill, error) {
	fills, err := r.intents(ctx, task)
	var filled []fill
	for _, in := range fills {
		n, e := r.chunk(ctx, task, in)
		switch {
		case e == nil:
			filled = append(filled, n)
		case moraine.KindOf(e) == moraine.Stale: // the stripe is stale, not a requested chunk
			r.deps.Metrics.StripesStale.Inc()
			return nil, nil
		case err == nil:
			err = e
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return filled, err
}

// tried reports whether the stripe is an unrecoverable candidate: too few of its chunks count
// as present. The leader then lets the mover try the others, some at a time.
func tried(task *wire.RepairTask) bool {
	return bits.OnesCount32(task.GetMissing()) > int(task.GetStripe().GetScheme().GetM())
}

// urgent reports whether a stripe has no redundancy left: one more lost chunk loses its data.
func urgent(task *wire.RepairTask) bool {
	return bits.OnesCount32(task.GetMissing()) >= int(task.GetStripe().GetScheme().GetM())
}

// intents returns those recorded for the task. For each missing chunk without one it requests
// an intent: the leader's chosen target went out before the intent was recorded.
func (r *repairs) intents(ctx context.Context, task *wire.RepairTask) (fills []fill, err error) {
	add := func(intents []*wire.Intent, capability []byte) {
		for _, in := range intents {
			fills = append(fills, fill{intent: in, capability: capability})
		}
	}
	intents := task.GetIntents()
	add(intents, task.GetCapability())
	if len(intents) > 0 && tried(task) {
		return fills, nil // the others follow later
	}
	open := task.GetMissing()
	for _, in := range intents {
		open &^= 1 << in.GetIndex()
	}
	for index := uint32(0); open != 0; index, open = index+1, open>>1 {
		if open&1 == 0 {
			continue
		}
		reply, err := r.begin(ctx, &wire.Intent{Stripe: task.GetStripe().GetId(), Index: index})
		if err != nil {
			return fills, err
		}
		add(reply.GetIntents(), reply.GetCapability())
	}
	return fills, nil
}

// begin records an intent. For an existing one the service answers again, with a new
// capability.
func (r *repairs) begin(ctx context.Context, in *wire.Intent) (*wire.BeginRepairReply, error) {
	resp, err := r.deps.Service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_BeginRepair{BeginRepair: &wire.BeginRepair{
		Job: r.job.GetId(), LeaseEpoch: r.job.GetLeaseEpoch(), Intents: []*wire.Intent{in}}}})
	return resp.GetBeginRepair(), err
}

// chunk rebuilds one chunk and writes it to the device of its intent. If it had to encode wrong
// parity again, the filled intent says so.
func (r *repairs) chunk(ctx context.Context, task *wire.RepairTask, f fill) (fill, error) {
	in := f.intent
	stripe := task.GetStripe()
	scheme := moraine.Scheme{K: uint8(stripe.GetScheme().GetK()), M: uint8(stripe.GetScheme().GetM())}
	if !scheme.Valid() || in.GetStripe() != stripe.GetId() || int(in.GetIndex()) >= scheme.Chunks() {
		return fill{}, &moraine.Error{Op: "mover.repair", Kind: moraine.Internal,
			Err: fmt.Errorf("intent for chunk %d of stripe %x, in a task for %x", in.GetIndex(), in.GetStripe(), stripe.GetId())}
	}
	length := scheme.ChunkLen(int64(stripe.GetLength()))
	if err := r.throttle(ctx, length); err != nil {
		return fill{}, err
	}
	if err := r.pace(ctx, r.moved(scheme, length)); err != nil {
		return fill{}, err
	}
	out, err := r.fill(ctx, task, f)
	if moraine.KindOf(err) != moraine.PermissionDenied || ctx.Err() != nil {
		return out, err
	}
	reply, e := r.begin(ctx, in) // the capability expired while the stripe waited for its turn
	if e != nil {
		return fill{}, errors.Join(err, e)
	}
	f.capability = reply.GetCapability()
	return r.fill(ctx, task, f)
}

// fill rebuilds the chunk of an intent and writes it under one capability.
func (r *repairs) fill(ctx context.Context, task *wire.RepairTask, f fill) (fill, error) {
	in, stripe := f.intent, proto.CloneOf(task.GetStripe())
	stripe.Capability = f.capability
	data, sum, release, err := r.rebuild(ctx, task, stripe, int(in.GetIndex()))
	if err != nil {
		return fill{}, err
	}
	defer release()
	if sum != stripe.GetChunks()[in.GetIndex()].GetCrc() || task.GetRecode()&(1<<in.GetIndex()) != 0 {
		in = proto.CloneOf(in)
		in.Recoded, in.Crc = true, sum
	}
	return fill{intent: in, bytes: int64(len(data))}, r.deps.Stripes.PutRepaired(ctx, stripe, in, f.capability, data)
}

// rebuild returns the bytes of a chunk. If parity is known to be wrong, or its
// rebuilt bytes lack the recorded checksum, it encodes the parity again from
// the data. That gives another checksum.
func (r *repairs) rebuild(ctx context.Context, task *wire.RepairTask, stripe *wire.Stripe, index int) (data []byte, sum uint32, release func(), err error) {
	if task.GetRecode()&(1<<index) != 0 {
		return r.deps.Stripes.RecodeParity(ctx, stripe, index)
	}
	data, sum, release, err = r.deps.Stripes.RebuildChunk(ctx, stripe, index, task.GetMissing())
	k := int(stripe.GetScheme().GetK())
	if errors.Is(err, moraine.Corrupt) && k > 1 && index >= k {
		return r.deps.Stripes.RecodeParity(ctx, stripe, index)
	}
	return data, sum, release, err
}

// moved returns how many bytes the mover reads and writes for a chunk of that length. The mover
// writes the chunk once. Before, it reads the chunk from its device, or the chunks that a rebuild
// needs. It learns only afterwards which of the two, so a repair counts the larger number.
func (r *repairs) moved(scheme moraine.Scheme, length int64) int64 {
	if r.job.GetKind() == wire.JobKind_JOB_KIND_REBALANCE {
		return 2 * length
	}
	return int64(scheme.K+1) * length
}

// commit publishes filled intents once there are enough, or all that are left. COMMIT POINT of
// a repair: each stripe's layout changes in one log entry.
func (r *repairs) commit(ctx context.Context, more []fill, all bool) error {
	r.mu.Lock()
	r.filled = append(r.filled, more...)
	var batch []fill
	if n := len(r.filled); n >= commitIntents || (all && n > 0) {
		batch, r.filled = r.filled, nil
	}
	r.mu.Unlock()
	if len(batch) == 0 || ctx.Err() != nil {
		return nil
	}
	req := &wire.CommitRepair{Job: r.job.GetId(), LeaseEpoch: r.job.GetLeaseEpoch()}
	for _, f := range batch {
		req.Intents = append(req.Intents, f.intent)
	}
	resp, err := r.deps.Service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CommitRepair{CommitRepair: req}})
	if err != nil {
		return err
	}
	stale := make(map[uint64]bool)
	for _, id := range resp.GetCommitRepair().GetStale() {
		stale[id] = true
	}
	r.deps.Metrics.StripesStale.Add(float64(len(stale)))
	for _, f := range batch {
		if !stale[f.intent.GetStripe()] {
			r.deps.Metrics.ChunksRepaired.Inc()
			r.deps.Metrics.BytesRepaired.Add(float64(f.bytes))
		}
	}
	return nil
}
