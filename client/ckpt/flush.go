package ckpt

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/transport/wire"
	"golang.org/x/sync/errgroup"
)

const (
	// filesAtOnce bounds the files of one part that are written at once.
	filesAtOnce = 4
	// flushAttempts bounds how often a part is written from the start. By then package client has
	// already retried each request.
	flushAttempts = 5
	// flushPause is the pause before the second attempt; it doubles.
	flushPause = time.Second
)

// write is the save's own goroutine: it announces the part, waits for Seal, writes the part,
// and frees the staging memory.
func (s *Part) write(ctx context.Context) {
	defer close(s.done)
	defer s.release()
	defer noteEnd(s)
	var step *wire.Step
	err := s.retry(ctx, func() (err error) { step, err = s.begin(ctx); return err })
	if err != nil {
		s.fail(err)
		s.end(err)
	}
	close(s.announced)
	if err != nil {
		return
	}
	if !s.opts.Lent {
		s.run.settle(ctx)
	}
	if err := wait(ctx, s.sealed); err != nil {
		s.end(err)
	}
	if s.endCause != nil {
		abandon(ctx, s)
		return
	}
	sealedAt := s.run.opts.Clock.Now()
	if err := s.flush(ctx, step); err != nil {
		s.fail(err)
		tell(ctx, s, err)
		return
	}
	s.written = s.run.opts.Clock.Now().Sub(sealedAt)
	if !s.opts.Lent {
		s.run.noteWritten(s)
	}
	s.run.opts.Metrics.PartsSealed.Inc()
	s.run.opts.Metrics.WriteSeconds.Observe(s.written.Seconds())
}

// flush writes the part and seals it. Each further try announces the rank again: if the client
// has a new session, the step then waits for that one.
func (s *Part) flush(ctx context.Context, step *wire.Step) error {
	files, digest, err := s.files()
	if err != nil {
		return invalid("ckpt.Seal", s.ref(), err)
	}
	for i := range files {
		s.total.Add(files[i].size())
	}
	again := false
	return s.retry(ctx, func() error {
		if again {
			s.run.opts.Metrics.PartRetries.Inc()
			if s.isSealed(ctx, digest[:]) {
				return nil
			}
			if step, err = s.begin(ctx); err != nil {
				return err
			}
		}
		again = true
		return s.writePart(ctx, step, files, digest)
	})
}

func (s *Part) release() {
	s.adding.Lock()
	defer s.adding.Unlock()
	s.stage.release()
}

// retry repeats f while the failure may pass, and returns the last error.
func (s *Part) retry(ctx context.Context, f func() error) error {
	for i, pause := 0, flushPause; ; i, pause = i+1, 2*pause {
		err := f()
		if err == nil {
			return nil
		}
		if i+1 == flushAttempts || !passing(err) || ctx.Err() != nil {
			return s.wrap(err)
		}
		s.run.opts.Log.Warn("writing a part of a checkpoint failed; trying again",
			"step", s.step, "rank", s.run.opts.Rank, "attempt", i+1, "err", err)
		select {
		case <-s.run.opts.Clock.After(pause):
		case <-ctx.Done():
		}
	}
}

// passing reports whether the next attempt may succeed. The service aborts the step of an
// expired session; the next attempt then returns that error.
func passing(err error) bool {
	switch moraine.KindOf(err) {
	case moraine.Unavailable, moraine.Timeout, moraine.Stale, moraine.SessionExpired, moraine.NotLeader, moraine.IOError:
		return true
	}
	return false
}

func (s *Part) key() *wire.StepKey { return stepKeyOf(s.run.id, s.run.attempt, s.step) }

func (s *Part) begin(ctx context.Context) (*wire.Step, error) {
	resp, err := s.run.c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_BeginStep{BeginStep: &wire.BeginStep{
		Key: s.key(), Rank: s.run.opts.Rank, World: s.run.opts.World,
		SealTimeoutMillis: uint64(s.opts.SealTimeout.Milliseconds()), Bytes: uint64(s.opts.Bytes),
		Level: uint32(s.opts.Level),
	}}})
	if err != nil {
		return nil, err
	}
	step := resp.GetStep().GetStep()
	info := stepInfo(step)
	return step, stepEnded(&info)
}

// abandon reports to the service that the step will never be whole. So the
// other ranks do not wait for this rank's seal until the timeout.
func abandon(ctx context.Context, s *Part) {
	s.fail(s.wrap(fmt.Errorf("%w: %w", moraine.Aborted, s.endCause)))
	abortStep(ctx, s, fmt.Sprintf("rank %d: %v", s.run.opts.Rank, s.endCause))
}

// tell aborts the step of a part that could not be written. The other ranks then learn at once
// that it failed and which rank failed, and not only when the step times out. If the step has
// ended already, or another attempt has taken over, they know. With a single rank there is no
// other, and the rank may save the step again.
func tell(ctx context.Context, s *Part, cause error) {
	switch moraine.KindOf(cause) {
	case moraine.Aborted, moraine.Fenced, moraine.NotFound, moraine.Exists:
		return
	}
	if s.run.opts.World == 1 || ctx.Err() != nil {
		return
	}
	if inner := errors.Unwrap(cause); inner != nil {
		cause = inner // the other ranks know the step
	}
	s.reported = true
	abortStep(ctx, s, fmt.Sprintf("rank %d could not write its part: %v", s.run.opts.Rank, cause))
}

func abortStep(ctx context.Context, s *Part, reason string) {
	if ctx.Err() != nil {
		return // the end of the session aborts it, unless another process goes on
	}
	_, err := s.run.c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_AbortStep{AbortStep: &wire.AbortStep{
		Key: s.key(), Reason: clip(reason, maxReason)}}})
	if err != nil {
		s.run.opts.Log.Warn("aborting a checkpoint failed; it will time out", "step", s.step, "err", err)
	}
}

// maxReason bounds the reason sent to the service, in bytes: it keeps some 500 bytes, and adds
// the missing ranks.
const maxReason = 300

// clip cuts a text to at most n bytes, between characters.
func clip(s string, n int) string {
	for len(s) > n {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}

// writePart writes all files of the part and seals it. Everything is unlinked until SealPart
// links it: if the process stops before, the end of the session removes the files and aborts
// the step.
func (s *Part) writePart(ctx context.Context, step *wire.Step, files []outFile, digest [sha256.Size]byte) error {
	s.progress.Store(0)
	sealed := &wire.SealPart{Key: s.key(), Rank: s.run.opts.Rank, Digest: digest[:], Files: make([]*wire.PartFile, len(files))}
	results := make([]committed, len(files))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(filesAtOnce)
	for i := range files {
		g.Go(func() (err error) {
			sealed.Files[i], results[i], err = files[i].write(gctx, s, step)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	sealed.Protects = results[0].protects
	for _, r := range results {
		if r.size > 0 {
			sealed.Protects = min(sealed.Protects, r.protects)
		}
		sealed.Degraded += r.degraded
	}
	// COMMIT POINT of the part.
	_, err := s.run.c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SealPart{SealPart: sealed}})
	if err != nil && s.isSealed(ctx, digest[:]) {
		return nil
	}
	return err
}

// isSealed reports whether the part is sealed with digest: an earlier SealPart took effect, and
// its answer was lost.
func (s *Part) isSealed(ctx context.Context, digest []byte) bool {
	resp, err := s.run.c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListParts{ListParts: &wire.ListParts{
		Key: s.key(), After: s.run.opts.Rank, Limit: 1}}})
	if err != nil || len(resp.GetParts().GetParts()) == 0 {
		return false
	}
	p := resp.GetParts().GetParts()[0]
	return p.GetRank() == s.run.opts.Rank && slices.Equal(p.GetDigest(), digest)
}

// files lays the part out: safetensors files first, then blobs.
func (s *Part) files() ([]outFile, [sha256.Size]byte, error) {
	count := s.tensorFiles()
	var files []outFile
	roots := make([][sha256.Size]byte, count)
	for n := range count {
		f, err := s.tensorFile(n)
		if err != nil {
			return nil, [sha256.Size]byte{}, err
		}
		roots[n] = headerRoot(f.header)
		files = append(files, f)
	}
	o := &s.run.opts
	for _, b := range s.blobs {
		files = append(files, outFile{name: blobFileName(o.Rank, o.World, b.name), bytes: []*staged{b.bytes}, names: []string{b.name}})
	}
	return files, partDigest(roots), nil
}

// tensorFile lays out the file with the n-th slice of each tensor that has so many.
func (s *Part) tensorFile(n int) (outFile, error) {
	o := &s.run.opts
	meta := partMeta{Version: partVersion, Run: strconv.FormatUint(uint64(s.run.id), 16), Attempt: s.run.attempt,
		Step: s.step, Rank: o.Rank, World: o.World, File: n, Tensors: make(map[string]tensorMeta)}
	if n == 0 {
		meta.Shared = s.shared
		meta.Blobs = make(map[string]blobMeta, len(s.blobs))
		for _, b := range s.blobs {
			meta.Blobs[b.name] = blobMeta{Size: b.bytes.size, Digest: digestBlocks(b.bytes.blocks, b.bytes.size).String()}
		}
	}
	offsets := make(map[string]dcpSlice)
	var h safetensors.Header
	for name, list := range s.slices {
		if n >= len(list) {
			continue
		}
		t := &list[n]
		h.Tensors = append(h.Tensors, safetensors.Tensor{Name: name, DType: t.DType, Shape: t.Shape})
		meta.Tensors[name] = tensorMeta{Global: t.Global, Digest: digestBlocks(t.bytes.blocks, t.bytes.size).String()}
		offsets[name] = dcpSlice{SavedOffsets: t.Offset}
	}
	if err := safetensors.Order(h.Tensors); err != nil {
		return outFile{}, err
	}
	var err error
	if h.Metadata, err = meta.metadata(offsets); err != nil {
		return outFile{}, err
	}
	f := outFile{name: partName(o.Rank, o.World, n)}
	if f.header, err = h.Encode(); err != nil {
		return outFile{}, err
	}
	for i := range h.Tensors {
		f.bytes = append(f.bytes, s.slices[h.Tensors[i].Name][n].bytes)
		f.names = append(f.names, h.Tensors[i].Name)
	}
	return f, nil
}
