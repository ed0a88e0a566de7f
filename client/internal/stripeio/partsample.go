package stripeio

import (
	"sync/atomic"

	"github.com/morainefs/moraine"
)

// The client verifies one of WholeSample rebuilt parts of chunks. It rebuilds the whole chunk
// and compares it with its recorded checksum. If it cannot, it tries again WholeRetry parts
// later.
const WholeSample, WholeRetry = 256, 16

// partSample selects the rebuilt parts of chunks that a client verifies: the first one, and
// then each WholeSample-th after a verified one. Methods may be called concurrently.
type partSample struct {
	since atomic.Int64 // parts since the last selected one
}

// begin makes pick select the first part.
func (s *partSample) begin() { s.since.Store(WholeSample - 1) }

// pick reports whether to verify the current part. The caller calls missed if it could not
// verify it.
func (s *partSample) pick() bool {
	n := s.since.Add(1)
	return n >= WholeSample && s.since.CompareAndSwap(n, 0)
}

// missed makes pick select another part soon: an unverified part does not count.
func (s *partSample) missed() { s.since.Add(WholeSample - WholeRetry) }

// samplePiece returns how many bytes of each chunk a verification gathers at
// once. Together with the whole chunk they fit into the memory for
// verifications. It returns 0 if the chunk alone does not fit.
func (e *Engine) samplePiece(s *Record, length, piece int64) int64 {
	fits := (e.Helpers.Size() - length) / int64(s.Scheme.K+1)
	return max(0, min(piece, length, fits/moraine.BlockSize*moraine.BlockSize))
}
