// Package erasure computes the parity chunks of a stripe and rebuilds lost chunks
// from the remaining ones. Only this package imports the Reed-Solomon library.
//
// It does not checksum, allocate large buffers, start goroutines or know where
// chunks are. All calls work on slices of the caller. A caller can therefore
// process a stripe in columns of PieceSize bytes of each chunk. It copies,
// checksums and encodes each column while it is in the processor's cache:
//
//	for off := 0; off < chunkLen; off += erasure.PieceSize {
//		coder.Encode(pieces of data at off, pieces of parity at off)
//	}
//
// Parity is a format: docs/formats/stripe.md describes the code, and a golden test
// checks this package against it.
package erasure

import (
	"fmt"
	"sync"

	"github.com/klauspost/reedsolomon"
	"github.com/morainefs/moraine"
)

// PieceSize is the width of a column, in bytes of each chunk. With it, k+m pieces
// of the common schemes fit in a second-level cache.
const PieceSize = 64 << 10

// Coder encodes and rebuilds stripes of one scheme. It is immutable and may be used
// concurrently.
type Coder struct {
	scheme moraine.Scheme
	// rs is nil if every chunk holds the same bytes, or if there is no parity.
	rs reedsolomon.Encoder
}

// New returns the coder of scheme. It costs a matrix inversion: keep coders in a
// Cache.
func New(scheme moraine.Scheme) (*Coder, error) {
	if !scheme.Valid() {
		return nil, &moraine.Error{Op: "erasure.New", Ref: scheme.String(), Kind: moraine.InvalidArgument}
	}
	c := &Coder{scheme: scheme}
	if scheme.IsCopies() || scheme.M == 0 {
		return c, nil
	}
	rs, err := reedsolomon.New(int(scheme.K), int(scheme.M),
		reedsolomon.WithMaxGoroutines(1)) // concurrency inside halves the speed on pieces of 64 KiB
	if err != nil {
		return nil, &moraine.Error{Op: "erasure.New", Ref: scheme.String(), Kind: moraine.Internal, Err: err}
	}
	c.rs = rs
	return c, nil
}

// Scheme returns the scheme of the coder.
func (c *Coder) Scheme() moraine.Scheme { return c.scheme }

// Encode computes parity from data: K slices of one length in, M slices of that
// length out. It changes only parity.
func (c *Coder) Encode(data, parity [][]byte) error {
	if err := c.checkEncode(data, parity); err != nil {
		return err
	}
	if c.rs == nil {
		for _, p := range parity {
			copy(p, data[0])
		}
		return nil
	}
	var shards [moraine.MaxChunks][]byte
	n := copy(shards[:], data)
	n += copy(shards[n:], parity)
	if err := c.rs.Encode(shards[:n]); err != nil {
		return &moraine.Error{Op: "erasure.Encode", Ref: c.scheme.String(), Kind: moraine.Internal, Err: err}
	}
	return nil
}

func (c *Coder) checkEncode(data, parity [][]byte) error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "erasure.Encode", Ref: c.scheme.String(), Kind: moraine.InvalidArgument,
			Err: fmt.Errorf(format, args...)}
	}
	if len(data) != int(c.scheme.K) || len(parity) != int(c.scheme.M) {
		return bad("got %d data and %d parity slices", len(data), len(parity))
	}
	if len(data[0]) == 0 {
		return bad("empty slices")
	}
	for _, set := range [2][][]byte{data, parity} {
		for _, s := range set {
			if len(s) != len(data[0]) {
				return bad("slices differ in length: %d and %d bytes", len(data[0]), len(s))
			}
		}
	}
	return nil
}

// Reconstruct fills the slices of want from those of have. Both have K+M elements,
// by index of chunk: have[i] is nil if chunk i is missing, and want[i] is nil if it
// is not wanted. At least K of have must be present. All slices that are not nil
// must have one length above 0. A chunk that is present and wanted is copied. On
// error the slices of want are undefined; have never changes.
func (c *Coder) Reconstruct(have, want [][]byte) error {
	size, err := c.checkReconstruct(have, want)
	if err != nil {
		return err
	}
	if c.rs == nil {
		return c.copyChunks(have, want)
	}
	var shards [moraine.MaxChunks][]byte
	var required [moraine.MaxChunks]bool
	n := c.scheme.Chunks()
	missing := false
	for i := range n {
		switch {
		case have[i] != nil:
			shards[i] = have[i]
			if want[i] != nil {
				copy(want[i], have[i])
			}
		case want[i] != nil:
			shards[i] = want[i][:0:size]
			required[i], missing = true, true
		}
	}
	if !missing {
		return nil
	}
	if err := c.rs.ReconstructSome(shards[:n], required[:n]); err != nil {
		return &moraine.Error{Op: "erasure.Reconstruct", Ref: c.scheme.String(), Kind: moraine.Internal, Err: err}
	}
	return nil
}

// copyChunks handles the schemes without Reed-Solomon: copies, and k+0.
func (c *Coder) copyChunks(have, want [][]byte) error {
	for i, w := range want {
		if w == nil {
			continue
		}
		from := have[i]
		for j := 0; from == nil && c.scheme.IsCopies() && j < len(have); j++ {
			from = have[j]
		}
		if from == nil {
			return &moraine.Error{Op: "erasure.Reconstruct", Ref: c.scheme.String(), Kind: moraine.Lost,
				Err: fmt.Errorf("chunk %d has no parity to rebuild it from", i)}
		}
		copy(w, from)
	}
	return nil
}

// checkReconstruct returns the common length of the slices.
func (c *Coder) checkReconstruct(have, want [][]byte) (int, error) {
	fail := func(kind moraine.Kind, format string, args ...any) (int, error) {
		return 0, &moraine.Error{Op: "erasure.Reconstruct", Ref: c.scheme.String(), Kind: kind,
			Err: fmt.Errorf(format, args...)}
	}
	n := c.scheme.Chunks()
	if len(have) != n || len(want) != n {
		return fail(moraine.InvalidArgument, "got %d and %d slices, want %d of each", len(have), len(want), n)
	}
	size, present := 0, 0
	for _, s := range have {
		if s == nil {
			continue
		}
		present++
		if size == 0 {
			size = len(s)
		}
		if len(s) == 0 || len(s) != size {
			return fail(moraine.InvalidArgument, "slices differ in length: %d and %d bytes", size, len(s))
		}
	}
	if present < int(c.scheme.K) {
		return fail(moraine.Lost, "%d chunks left of the %d needed", present, c.scheme.K)
	}
	for _, s := range want {
		if s != nil && len(s) != size {
			return fail(moraine.InvalidArgument, "slices differ in length: %d and %d bytes", size, len(s))
		}
	}
	return size, nil
}

// Cache keeps one Coder for each scheme. The zero value is ready; it may be used
// concurrently. The number of possible schemes limits its size.
type Cache struct {
	coders sync.Map // moraine.Scheme -> *Coder
}

// Get returns the coder of scheme.
func (c *Cache) Get(scheme moraine.Scheme) (*Coder, error) {
	if v, ok := c.coders.Load(scheme); ok {
		return v.(*Coder), nil
	}
	coder, err := New(scheme)
	if err != nil {
		return nil, err
	}
	v, _ := c.coders.LoadOrStore(scheme, coder)
	return v.(*Coder), nil
}
