package stripeio

import (
	"sync/atomic"

	"github.com/morainefs/moraine"
)

// WholeSample is in how many rebuilds of a part of a chunk one is verified: the whole chunk
// is rebuilt, and compared with its recorded sum. WholeRetry is after how many more the
// next one is, where that could not be done.
const WholeSample, WholeRetry = 256, 16

// partSample picks the rebuilt parts of chunks that a client verifies: the first one, and
// then each that is WholeSample after one that was verified. Methods may be called
// concurrently.
type partSample struct {
	since atomic.Int64 // parts since the last one that was picked
}

// begin has the first part be picked.
func (s *partSample) begin() { s.since.Store(WholeSample - 1) }

// pick reports whether the part at hand is to be verified. One that was picked and could
// not be verified is given to missed.
func (s *partSample) pick() bool {
	n := s.since.Add(1)
	return n >= WholeSample && s.since.CompareAndSwap(n, 0)
}

// missed has a part be picked soon: no part counts as verified that was not.
func (s *partSample) missed() { s.since.Add(WholeSample - WholeRetry) }

// samplePiece returns how many bytes of each chunk a verification gathers at once, so that
// with the whole chunk they fit into the memory that verifications may take; 0 where the
// chunk alone does not.
func (e *Engine) samplePiece(s *Record, length, piece int64) int64 {
	fits := (e.Helpers.Size() - length) / int64(s.Scheme.K+1)
	return max(0, min(piece, length, fits/moraine.BlockSize*moraine.BlockSize))
}
