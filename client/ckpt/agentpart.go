package ckpt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/client/ckpt/busy"
)

// slotSlack is how much longer than a part its slot is, in bytes, besides the sums: each tensor
// begins at a multiple of 64.
const slotSlack = 4 << 20

// slotBytes is what a slot for a part of n bytes holds: the bytes and their sums.
func slotBytes(n int64) int64 { return n + n/moraine.BlockSize*4 + slotSlack }

// beginAtAgent gets a slot for s from the agent of the node.
func (r *Run) beginAtAgent(ctx context.Context, s *Part) error {
	if s.opts.Bytes <= 0 {
		return invalid("ckpt.Begin", s.ref(), errors.New("with an agent, Begin needs the bytes of the part: set BeginOptions.Bytes"))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	mem, failed, err := r.agent.begin(ctx, agentproto.Begin{Step: s.step, Bytes: slotBytes(s.opts.Bytes), Reserve: s.opts.Bytes, Level: levelName(s.opts.Level),
		SealTimeoutMillis: s.opts.SealTimeout.Milliseconds(), NoWait: s.opts.Busy == busy.Skip, Supersede: s.opts.Busy == busy.Supersede})
	if err != nil {
		return s.wrap(err)
	}
	for _, f := range failed {
		r.noteFailure(f.Step, f.Err())
	}
	s.stage = stage{metrics: r.opts.Metrics, slot: mem, rest: mem}
	return nil
}

// levelName returns the name of a level, and nothing for the default.
func levelName(l moraine.Level) string {
	if l == 0 {
		return ""
	}
	return l.String()
}

// sealAtAgent gives the part to the agent: from then on it survives this process.
func (s *Part) sealAtAgent(ctx context.Context) error {
	req := &agentproto.Seal{Step: s.step}
	var sums []uint32
	for _, name := range slices.Sorted(maps.Keys(s.slices)) {
		for _, t := range s.slices[name] {
			req.Tensors = append(req.Tensors, agentproto.Tensor{Name: name, DType: t.DType.String(), Shape: t.Shape, Global: t.Global,
				Offset: t.Offset, At: t.bytes.at, Bytes: t.bytes.size})
			sums = append(sums, t.bytes.blocks...)
		}
	}
	for _, b := range s.blobs {
		req.Blobs = append(req.Blobs, agentproto.Blob{Name: b.name, At: b.bytes.at, Bytes: b.bytes.size})
		sums = append(sums, b.bytes.blocks...)
	}
	if len(s.stage.rest) < 4*len(sums) {
		return s.stage.tooLarge()
	}
	req.SumsAt = int64(len(s.stage.slot) - len(s.stage.rest))
	for i, sum := range sums {
		binary.LittleEndian.PutUint32(s.stage.rest[4*i:], sum)
	}
	_, _, err := s.run.agent.request(ctx, &agentproto.Request{Seal: req})
	if agentproto.Broken(err) && ctx.Err() == nil {
		return s.run.agent.sealed(ctx, s.step, err)
	}
	return err
}

// follow is the part's own goroutine with an agent: after Seal it waits until the agent has
// written the part to the cluster, and after Abort it tells the agent.
func (s *Part) follow(ctx context.Context) {
	defer close(s.done)
	defer s.release()
	defer noteEnd(s)
	if err := wait(ctx, s.sealed); err != nil {
		s.end(err)
	}
	if s.endCause != nil {
		s.fail(s.wrap(fmt.Errorf("%w: %w", moraine.Aborted, s.endCause)))
		s.adding.Lock() // the agent takes the memory: a copy that is under way ends first
		defer s.adding.Unlock()
		// If the request fails, the connection has ended, and the agent aborts the part by itself.
		_, _, _ = s.run.agent.request(ctx, &agentproto.Request{Abort: &agentproto.Abort{Step: s.step,
			Reason: fmt.Sprintf("rank %d: %v", s.run.opts.Rank, s.endCause)}})
		return
	}
	sealedAt := s.run.opts.Clock.Now()
	if err := s.run.agent.waitPart(ctx, s.step); err != nil {
		s.fail(s.wrap(err))
		return
	}
	s.written = s.run.opts.Clock.Now().Sub(sealedAt)
	s.run.opts.Metrics.WriteSeconds.Observe(s.written.Seconds())
}
