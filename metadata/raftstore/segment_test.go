package raftstore_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/raftstore"
)

// segmentBuilder writes segments as raft-wal does.
type segmentBuilder struct {
	p    []byte
	from int
}

func newSegment() *segmentBuilder { return &segmentBuilder{p: bytes.Repeat([]byte{0x58}, 32)} }

func (b *segmentBuilder) frame(kind byte, payload string) *segmentBuilder {
	b.p = append(b.p, kind, 0, 0, 0)
	b.p = binary.LittleEndian.AppendUint32(b.p, uint32(len(payload)))
	b.p = append(b.p, payload...)
	for len(b.p)%8 != 0 {
		b.p = append(b.p, 0)
	}
	return b
}

func (b *segmentBuilder) commit() *segmentBuilder {
	sum := crc32.Checksum(b.p[b.from:], crc32.MakeTable(crc32.Castagnoli))
	b.p = append(b.p, 3, 0, 0, 0)
	b.p = binary.LittleEndian.AppendUint32(b.p, sum)
	b.from = len(b.p)
	return b
}

func TestScanSegment(t *testing.T) {
	one := func() *segmentBuilder { return newSegment().frame(1, "first").commit() }
	two := func() *segmentBuilder { return one().frame(1, "second").frame(1, "third").commit() }
	end := int64(len(one().p))
	flip := func(p []byte, at int) []byte { p[at] ^= 1; return p }
	zeros := make([]byte, 4096)
	for name, c := range map[string]struct {
		p       []byte
		end     int64
		entries uint64
		sealed  bool
		corrupt bool
	}{
		"empty":                     {p: zeros},
		"header only":               {p: newSegment().p},
		"one append":                {p: append(one().p, zeros...), end: end, entries: 1},
		"no preallocation":          {p: one().p, end: end, entries: 1},
		"two appends":               {p: two().p, end: int64(len(two().p)), entries: 3},
		"torn second":               {p: flip(two().p, len(one().p)+10), end: end, entries: 1},
		"second without its commit": {p: one().frame(1, "second").p, end: end, entries: 1},
		"garbage behind":            {p: append(one().p, 0x77, 1, 2, 3, 4, 5, 6, 7, 8), end: end, entries: 1},
		"length past the end":       {p: append(one().p, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff), end: end, entries: 1},
		"torn first":                {p: flip(one().p, 34)},
		"sealed":                    {p: one().frame(2, "idx.").commit().p, end: int64(len(one().frame(2, "idx.").commit().p)), entries: 1, sealed: true},
		"torn seal":                 {p: flip(one().frame(2, "idx.").commit().p, len(one().p)+9), end: end, entries: 1},
		"damaged first, whole next": {p: flip(two().p, 41), corrupt: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := raftstore.ScanSegment(c.p)
			if c.corrupt {
				require.ErrorIs(t, err, moraine.Corrupt)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.end, got.End())
			require.Equal(t, c.entries, got.Entries())
			require.Equal(t, c.sealed, got.Index() > 0)
		})
	}
}

func FuzzScanSegment(f *testing.F) {
	f.Add(newSegment().frame(1, "first").commit().frame(2, "idx.").commit().p)
	f.Fuzz(func(t *testing.T, p []byte) {
		got, err := raftstore.ScanSegment(p)
		if err == nil && (got.End() > int64(len(p)) || got.Index() > got.End()) {
			t.Fatalf("%d of %d", got.End(), len(p))
		}
	})
}
