package client_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// changeRange makes a hole in the file, makes it longer, or clones a range of another file into it.
func (m *handleModel) changeRange() {
	off := m.rng.Int64N(int64(len(m.want)) + 1000)
	n := m.rng.Int64N(400_000) + 1
	switch m.rng.IntN(4) {
	case 0:
		require.NoError(m.t, m.handle().Grow(m.c.ctx, off))
		m.resize(max(len(m.want), int(off)))
	case 1:
		require.NoError(m.t, m.handle().PunchHole(m.c.ctx, off, n, 0))
		clear(m.want[min(int(off), len(m.want)):min(int(off+n), len(m.want))])
	case 2:
		require.NoError(m.t, m.handle().PunchHole(m.c.ctx, off, n, off+n))
		m.resize(max(len(m.want), int(off+n)))
		clear(m.want[off : off+n])
	case 3:
		m.cloneInto(off)
	}
}

// cloneInto writes another file, which need not be flushed, and clones a range of it into the file.
func (m *handleModel) cloneInto(off int64) {
	src := openNew(m.t, m.c, m.cl, "src")
	p := bytesOf(m.rng.Uint64(), m.rng.IntN(500_000)+1)
	at := m.rng.Int64N(100_000) // a hole before it
	writeAt(m.t, m.c, src, p, at)
	all := append(make([]byte, at), p...)
	from := m.rng.Int64N(int64(len(all)))
	n := m.rng.Int64N(int64(len(all))-from) + 1
	require.NoError(m.t, m.handle().CloneRange(m.c.ctx, src, from, off, n))
	require.NoError(m.t, src.Close(m.c.ctx))
	require.NoError(m.t, m.cl.Remove(m.c.ctx, "/src"))
	m.resize(max(len(m.want), int(off+n)))
	copy(m.want[off:], all[from:from+n])
}

// seek looks for holes and data from a random offset on: no byte between was written, and what
// counts as a hole is zero.
func (m *handleModel) seek() {
	off := m.rng.Int64N(int64(len(m.want)) + 1000)
	at, ok, err := m.handle().SeekData(m.c.ctx, off)
	require.NoError(m.t, err)
	if !ok {
		at = max(off, int64(len(m.want)))
	}
	skipped := m.want[min(off, int64(len(m.want))):min(at, int64(len(m.want)))]
	require.True(m.t, bytes.Equal(skipped, make([]byte, len(skipped))), "there is data before")
	at, ok, err = m.handle().SeekHole(m.c.ctx, off)
	require.NoError(m.t, err)
	require.Equal(m.t, off < int64(len(m.want)), ok)
	if ok && at < int64(len(m.want)) {
		require.Zero(m.t, m.want[at])
	}
	require.LessOrEqual(m.t, at, int64(len(m.want)))
}

// TestRangesThatCannotChange: what a range cannot be is an error, and changes nothing.
func TestRangesThatCannotChange(t *testing.T) {
	inCluster(t, 4, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		f, src := openNew(t, c, cl, "f"), openNew(t, c, cl, "src")
		data := bytesOf(1, 100_000)
		writeAt(t, c, f, data, 0)
		writeAt(t, c, src, data, 0)
		require.ErrorIs(t, f.CloneRange(c.ctx, f, 0, 200_000, 10), moraine.InvalidArgument, "of the file itself")
		require.ErrorIs(t, f.CloneRange(c.ctx, src, 99_999, 0, 2), moraine.InvalidArgument, "past the end of the source")
		require.ErrorIs(t, f.CloneRange(c.ctx, src, -1, 0, 2), moraine.InvalidArgument)
		require.ErrorIs(t, f.Grow(c.ctx, moraine.MaxFileSize+1), moraine.TooLarge)
		require.ErrorIs(t, f.PunchHole(c.ctx, 0, 10, moraine.MaxFileSize+1), moraine.TooLarge)
		require.NoError(t, f.PunchHole(c.ctx, moraine.MaxFileSize, 1<<62, 0), "nothing is there")
		require.NoError(t, f.PunchHole(c.ctx, 200_000, 1<<62, 0))
		m := &handleModel{t: t, c: c, cl: cl, want: data, handles: []*client.Handle{f}}
		m.checkAll()
		require.NoError(t, f.Close(c.ctx))
		require.ErrorIs(t, f.Grow(c.ctx, 1), moraine.InvalidArgument)
		require.NoError(t, src.Close(c.ctx))
	})
}
