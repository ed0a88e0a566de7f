package ckpt

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"golang.org/x/sync/errgroup"
)

// staged is a run of bytes in the arena, with the CRC32C of its 4 KiB blocks.
type staged struct {
	size   int64
	at     int64    // where it begins in the agent's slot
	pieces [][]byte // in order; the length of every one but the last is a multiple of BlockSize
	blocks []uint32
}

// stage is the staging memory of one save: a bump allocator over segments of the arena, or over
// one slot of the node's agent. Only one goroutine may use it at a time.
type stage struct {
	metrics  *Metrics
	arena    *arena // nil with a slot
	segments [][]byte
	slot     []byte
	rest     []byte // of the last segment, or of the slot
}

const (
	// copyPiece bytes are copied and then checksummed, while they are in the CPU cache.
	copyPiece = 64 << 10
	// copyShare is how many bytes justify another goroutine.
	copyShare = 4 << 20
	// maxCopiers bounds the goroutines of one copy: more do not raise the bandwidth of one
	// socket's memory.
	maxCopiers = 8
)

// add copies p into the arena and computes its checksums. It waits for memory that earlier
// saves use, and fails with TooLarge if this save alone exceeds the arena's limit.
func (s *stage) add(ctx context.Context, p []byte) (*staged, error) {
	st := &staged{size: int64(len(p)), blocks: make([]uint32, blockCount(len(p)))}
	if at, mine := s.place(p); mine {
		st.at, st.pieces = at, [][]byte{p}
		return st, st.fill(nil)
	}
	if err := s.reserve(ctx, st); err != nil {
		return nil, err
	}
	s.metrics.StagedBytes.Add(float64(len(p)))
	return st, st.fill(p)
}

// fill copies p into the pieces, unless it is nil, and computes their checksums.
func (st *staged) fill(p []byte) error {
	// Each job is a run of whole blocks of one piece, copied by one goroutine.
	var jobs []copyJob
	var at int
	for _, piece := range st.pieces {
		for len(piece) > 0 {
			n := min(len(piece), copyShare)
			job := copyJob{dst: piece[:n], sums: st.blocks[at/moraine.BlockSize:]}
			if p != nil {
				job.src = p[at : at+n]
			}
			jobs = append(jobs, job)
			piece, at = piece[n:], at+n
		}
	}
	if len(jobs) == 1 {
		jobs[0].run()
		return nil
	}
	var g errgroup.Group
	g.SetLimit(min(maxCopiers, runtime.GOMAXPROCS(0)))
	for i := range jobs {
		g.Go(func() error { jobs[i].run(); return nil })
	}
	return g.Wait()
}

// buffer takes n bytes of the slot, for the caller to fill.
func (s *stage) buffer(n int64) ([]byte, error) {
	st := &staged{size: n}
	if err := s.reserveInSlot(st); err != nil {
		return nil, err
	}
	return st.pieces[0], nil
}

// place reports whether p lies in what has been taken of the slot, and where.
func (s *stage) place(p []byte) (at int64, mine bool) {
	if len(p) == 0 || len(s.slot) == 0 {
		return 0, false
	}
	begin, of := uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(unsafe.Pointer(unsafe.SliceData(s.slot)))
	taken := uintptr(len(s.slot) - len(s.rest))
	if begin < of || begin-of >= taken || uintptr(len(p)) > taken-(begin-of) {
		return 0, false
	}
	return int64(begin - of), true
}

// reserve takes st.size bytes. Pieces begin at a multiple of 64 bytes, so that the copies are
// aligned and small tensors do not waste a page each.
func (s *stage) reserve(ctx context.Context, st *staged) error {
	if s.slot != nil {
		return s.reserveInSlot(st)
	}
	for need := st.size; need > 0; {
		if len(s.rest) < moraine.BlockSize && int64(len(s.rest)) < need {
			if int64(len(s.segments)+1)*segmentSize > s.arena.limit {
				return &moraine.Error{Op: "ckpt.stage", Kind: moraine.TooLarge,
					Err: fmt.Errorf("the part does not fit into the staging memory of %d bytes; raise StagingBytes", s.arena.limit)}
			}
			seg, err := s.arena.get(ctx)
			if err != nil {
				return err
			}
			s.segments, s.rest = append(s.segments, seg), seg
		}
		n := need
		if room := int64(len(s.rest)); n > room {
			n = room / moraine.BlockSize * moraine.BlockSize
		}
		st.pieces = append(st.pieces, s.rest[:n:n])
		s.rest = s.rest[min((n+63)/64*64, int64(len(s.rest))):]
		need -= n
	}
	return nil
}

// reserveInSlot takes st.size bytes of the slot, in one piece.
func (s *stage) reserveInSlot(st *staged) error {
	if int64(len(s.rest)) < st.size {
		return s.tooLarge()
	}
	st.at = int64(len(s.slot) - len(s.rest))
	st.pieces = append(st.pieces, s.rest[:st.size:st.size])
	s.rest = s.rest[min((st.size+63)/64*64, int64(len(s.rest))):]
	return nil
}

// tooLarge is the error of a part that does not fit into its slot.
func (s *stage) tooLarge() error {
	return &moraine.Error{Op: "ckpt.stage", Kind: moraine.TooLarge,
		Err: fmt.Errorf("the part does not fit into its slot of %d bytes: raise BeginOptions.Bytes", len(s.slot))}
}

// lend stages bytes where they are. sums are those of their blocks, or nil.
func lend(sums []uint32) func([]byte) (*staged, error) {
	return func(p []byte) (*staged, error) {
		if sums == nil {
			sums = crc.Blocks(nil, p)
		}
		if err := checkSumCount(sums, p); err != nil {
			return nil, err
		}
		return &staged{size: int64(len(p)), pieces: [][]byte{p}, blocks: sums}, nil
	}
}

// lendToAgent stages bytes that the caller lends, in the agent's slot: those that lie there stay, and
// the agent compares their sums. Others are copied, and compared here.
func (s *stage) lendToAgent(p []byte, sums []uint32) (*staged, error) {
	if sums == nil {
		return s.add(context.Background(), p) // in a slot it does not wait
	}
	if err := checkSumCount(sums, p); err != nil {
		return nil, err
	}
	if at, mine := s.place(p); mine {
		return &staged{size: int64(len(p)), at: at, pieces: [][]byte{p}, blocks: sums}, nil
	}
	st, err := s.add(context.Background(), p)
	if err == nil && !slices.Equal(st.blocks, sums) {
		return nil, &moraine.Error{Op: "ckpt.Lend", Kind: moraine.Corrupt, Err: errors.New("the bytes do not have the sums that came with them")}
	}
	return st, err
}

func checkSumCount(sums []uint32, p []byte) error {
	if len(sums) == blockCount(len(p)) {
		return nil
	}
	return &moraine.Error{Op: "ckpt.Lend", Kind: moraine.InvalidArgument,
		Err: fmt.Errorf("%d sums for %d bytes; %d are needed", len(sums), len(p), blockCount(len(p)))}
}

// release returns all memory. The staged runs must no longer be used.
func (s *stage) release() {
	if s.arena != nil {
		s.arena.put(s.segments...)
	}
	s.segments, s.slot, s.rest = nil, nil, nil
}

type copyJob struct {
	dst, src []byte // without src, dst has its bytes already
	sums     []uint32
}

func (j *copyJob) run() {
	sums := j.sums[:0]
	for at := 0; at < len(j.dst); at += copyPiece {
		n := min(copyPiece, len(j.dst)-at)
		if j.src != nil {
			copy(j.dst[at:at+n], j.src[at:at+n])
		}
		sums = crc.Blocks(sums, j.dst[at:at+n])
	}
}

func blockCount(n int) int { return (n + moraine.BlockSize - 1) / moraine.BlockSize }
