package crc_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/morainefs/moraine/internal/crc"
)

// TestSumsOfARandomWayToFill fills buffers by requests of random ranges, in pieces of random length: the
// checksums are those of the bytes, and a request's sum is that of its range.
func TestSumsOfARandomWayToFill(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		whole := random(seed, 1+r.IntN(40_000))
		back := r.IntN(100) // memory behind the buffer that is not the buffer's
		memory := make([]byte, len(whole)+back)
		buf := memory[:len(whole)]
		s := crc.NewSums(buf)
		for at := 0; at < len(whole); {
			n := 1 + r.IntN(len(whole)-at)
			dst, data := buf[at:][:n], whole[at:][:n]
			tally := s.Tally(dst)
			for done := 0; done < n; {
				m := min(1+r.IntN(9000), n-done)
				copy(dst[done:], data[done:][:m])
				tally.Add(dst[done:][:m])
				done += m
			}
			if got, want := tally.Sum(), crc.Sum(data); got != want {
				t.Fatalf("seed %d: the sum of [%d, %d) of %d bytes is %08x, want %08x", seed, at, at+n, len(whole), got, want)
			}
			if r.IntN(4) > 0 {
				tally.Keep()
			}
			at += n
		}
		if got, want := s.Blocks(), crc.Blocks(nil, whole); !slices.Equal(got, want) {
			t.Fatalf("seed %d: blocks %x, want %x", seed, got, want)
		}
	}
}

// TestSumsKeepWhatArrived: blocks that a request brought whole need not be computed again, others do.
func TestSumsKeepWhatArrived(t *testing.T) {
	buf := random(7, 5*4096+10)
	s := crc.NewSums(buf)
	first := s.Tally(buf[:2*4096+5])
	first.Add(buf[:2*4096+5])
	if s.Missing() != 6 {
		t.Fatalf("%d blocks are missing before Keep, want 6", s.Missing())
	}
	first.Keep()
	second := s.Tally(buf[2*4096+5:]) // the rest of the third block: no block of its own
	second.Add(buf[2*4096+5:])
	second.Keep()
	if s.Missing() != 1 {
		t.Fatalf("%d blocks are missing, want 1: the one that two requests share", s.Missing())
	}
	s.Forget(buf[4096:4097])
	if s.Missing() != 2 {
		t.Fatalf("%d blocks are missing after Forget, want 2", s.Missing())
	}
	other := s.Tally(make([]byte, 4096)) // not in the buffer
	other.Add(make([]byte, 4096))
	other.Keep()
	if s.Missing() != 2 || !slices.Equal(s.Blocks(), crc.Blocks(nil, buf)) {
		t.Fatal("bytes of other memory changed the sums")
	}
}

// TestNoSums: without Sums a Tally computes the checksum, and keeps nothing.
func TestNoSums(t *testing.T) {
	p := random(3, 10_000)
	s := crc.SumsOf(t.Context())
	s.Forget(p)
	tally := s.Tally(p)
	tally.Add(p)
	tally.Keep()
	if tally.Sum() != crc.Sum(p) {
		t.Fatal("wrong sum")
	}
}
