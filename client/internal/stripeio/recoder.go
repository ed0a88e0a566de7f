package stripeio

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
)

// recoder encodes one parity chunk of a stripe again, piece by piece. The result replaces a
// chunk and the checksum in its record, so no recorded checksum can confirm it. This CPU core
// may even be the one that computes wrongly. So it rebuilds data chunk 0 from the new parity
// and the other data. Each wrong byte of the parity makes a wrong byte of chunk 0, whose
// checksum was recorded when its bytes entered the system.
type recoder struct {
	coder interface {
		Encode(data, parity [][]byte) error
		Reconstruct(have, want [][]byte) error
	}
	k, m  int
	index int      // of the parity chunk
	sums  []uint32 // of the data chunks, so far
	made  uint32   // checksum of the parity chunk, so far
	back  uint32   // checksum of chunk 0 rebuilt from the parity, so far
}

// encode takes the next piece. parts are k pieces of data, m that it fills with parity, and one
// work buffer, all of one length.
func (r *recoder) encode(parts [][]byte) error {
	chunks := r.k + r.m
	if err := r.coder.Encode(parts[:r.k], parts[r.k:chunks]); err != nil {
		return err
	}
	have, want := make([][]byte, chunks), make([][]byte, chunks)
	copy(have[1:], parts[1:r.k])
	have[r.index], want[0] = parts[r.index], parts[chunks]
	if err := r.coder.Reconstruct(have, want); err != nil {
		return err
	}
	r.back = crc.Update(r.back, want[0])
	r.made = crc.Update(r.made, parts[r.index])
	// Last: this shows a bit of the data that flipped before the encoding.
	for i := range r.sums {
		r.sums[i] = crc.Update(r.sums[i], parts[i])
	}
	return nil
}

// check returns nil if the data had their recorded checksums, and out is their parity.
func (r *recoder) check(s *Record, out []byte) error {
	if err := recordedSums(s, r.sums); err != nil {
		return err
	}
	if want := s.Chunks[0].CRC; r.back != want {
		return r.wrong(s, "data chunk 0 has sum %08x by the new parity, the record %08x: this host computes wrong", r.back, want)
	}
	if got := crc.Sum(out); got != r.made {
		return r.wrong(s, "the new parity has sum %08x, it was made with %08x: it changed in memory", got, r.made)
	}
	return nil
}

func (r *recoder) wrong(s *Record, format string, args ...any) error {
	return &moraine.Error{Ref: fmt.Sprintf("%s/%d", s.ID, r.index), Kind: moraine.Corrupt, Err: fmt.Errorf(format, args...)}
}
