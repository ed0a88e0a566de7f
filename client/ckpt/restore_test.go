package ckpt_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/stretchr/testify/require"
)

// shardOf is one rank's share of a tensor, cut along one dimension.
func shardOf(shape []int64, dim int, rank, world uint32) (offset, size []int64) {
	offset, size = make([]int64, len(shape)), append([]int64{}, shape...)
	offset[dim] = int64(rank) * shape[dim] / int64(world)
	size[dim] = int64(rank+1)*shape[dim]/int64(world) - offset[dim]
	return offset, size
}

func elements(shape []int64) int64 {
	n := int64(1)
	for _, s := range shape {
		n *= s
	}
	return n
}

// sharded is tensors of bytes that ranks cut along a dimension of each.
type sharded []struct {
	name  string
	shape []int64
	dim   int
	data  []byte
}

func makeSharded() sharded {
	m := sharded{
		{name: "by.rows", shape: []int64{1000, 2048}},
		{name: "by.wide.columns", shape: []int64{24, 131072}, dim: 1},
		{name: "by.middle", shape: []int64{3, 24, 9000}, dim: 1},
	}
	for i := range 200 {
		m = append(m, struct {
			name  string
			shape []int64
			dim   int
			data  []byte
		}{name: fmt.Sprintf("norm.%03d", i), shape: []int64{120}})
	}
	for i := range m {
		m[i].data = make([]byte, elements(m[i].shape))
		_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(m[i].data)
	}
	return m
}

// save saves the shares of world ranks as a step, one after the other.
func (m sharded) save(t *testing.T, f *fakeCluster, step uint64, world uint32) {
	t.Helper()
	for rank := range world {
		s, err := openRun(t, f, rank, world).Begin(t.Context(), step, ckpt.BeginOptions{})
		require.NoError(t, err)
		for _, x := range m {
			offset, size := shardOf(x.shape, x.dim, rank, world)
			require.NoError(t, s.AddTensor(t.Context(), ckpt.Tensor{Name: x.name, DType: ckpt.U8, Shape: size, Global: x.shape, Offset: offset,
				Data: pick(x.data, x.shape, offset, size, 1)}))
		}
		require.NoError(t, s.Seal(t.Context()))
		<-s.Done()
	}
	r := openRun(t, f, 0, world)
	require.NoError(t, f.check(t.Context(), stepKey(r, step)))
}

// requests returns the shares of a rank.
func (m sharded) requests(rank, world uint32) (reqs []ckpt.SliceRequest, bytes int64) {
	for _, x := range m {
		offset, size := shardOf(x.shape, x.dim, rank, world)
		n := elements(size)
		reqs, bytes = append(reqs, ckpt.SliceRequest{Name: x.name, Offset: offset, Shape: size, Dst: make([]byte, n)}), bytes+n
	}
	return reqs, bytes
}

// TestReshardReadsLittleMoreThanItNeeds: 4 -> 2 -> 3 -> 8 ranks, cut by rows, by columns and in the
// middle. The bytes read from the cluster, without the indexes, are at most 1.02 times those
// needed. Short slices are read together.
func TestReshardReadsLittleMoreThanItNeeds(t *testing.T) {
	f, m := newFake(), makeSharded()
	worlds := []uint32{4, 2, 3, 8}
	for i, from := range worlds[:3] {
		step, to := uint64(i+1), worlds[i+1]
		m.save(t, f, step, from)
		var mu sync.Mutex
		var read, needed, reads int64
		for rank := range to {
			k := resolve(t, f)
			reqs, n := m.requests(rank, to)
			require.NoError(t, k.Restore(t.Context(), reqs[:1])) // opens what it needs of the index
			f.mu.Lock()
			f.read = func(_ uint64, dst []byte) error {
				mu.Lock()
				defer mu.Unlock()
				read, reads = read+int64(len(dst)), reads+1
				return nil
			}
			f.mu.Unlock()
			before := k.BytesRead()
			plan, err := k.Plan(t.Context(), reqs)
			require.NoError(t, err)
			require.Equal(t, n, plan.Bytes())
			require.Equal(t, before, k.BytesRead(), "a plan reads no part")
			require.NoError(t, plan.Run(t.Context()))
			require.Equal(t, k.BytesRead()-before, plannedBytes(t, plan))
			require.LessOrEqual(t, float64(k.BytesRead()-before), 1.02*float64(n))
			needed += n
			f.read = func(uint64, []byte) error { return nil }
			for j, x := range m {
				require.True(t, bytes.Equal(pick(x.data, x.shape, reqs[j].Offset, reqs[j].Shape, 1), reqs[j].Dst), "%s of rank %d of %d", x.name, rank, to)
			}
		}
		t.Logf("%d -> %d ranks: %d bytes in %d reads for %d needed", from, to, read, reads, needed)
		require.LessOrEqual(t, float64(read), 1.02*float64(needed), "%d -> %d ranks", from, to)
		require.GreaterOrEqual(t, read, needed)
		require.Less(t, reads, int64(to)*300, "the 200 short slices of a rank are read together")
	}
}

// plannedBytes counts the bytes of a plan's reads, none of them from the memory of the node.
func plannedBytes(t *testing.T, p *ckpt.Plan) (n int64) {
	t.Helper()
	for _, r := range p.Reads() {
		require.NotEmpty(t, r.File)
		require.Positive(t, r.Bytes)
		require.False(t, r.OnNode)
		n += r.Bytes
	}
	return n
}

// TestLongRangesGoStraightIntoTheCallersBuffer: a range of 256 KiB or more is read into the memory
// that the caller gave, without a copy.
func TestLongRangesGoStraightIntoTheCallersBuffer(t *testing.T) {
	f := newFake()
	data := bytes.Repeat([]byte{7}, 3<<20)
	save(t, f, model{{name: "w", dtype: ckpt.U8, shape: []int64{3, 1 << 20}, data: data}}, 1, 3)
	k := resolve(t, f)
	_, err := k.Tensor(t.Context(), "w")
	require.NoError(t, err)
	dst := make([]byte, len(data))
	var direct sync.Map
	f.read = func(_ uint64, p []byte) error {
		for i := range 3 {
			if &p[0] == &dst[i<<20] {
				direct.Store(i, true)
			}
		}
		return nil
	}
	require.NoError(t, k.ReadSlice(t.Context(), ckpt.SliceRequest{Name: "w", Offset: []int64{0, 0}, Shape: []int64{3, 1 << 20}, Dst: dst}))
	for i := range 3 {
		_, ok := direct.Load(i)
		require.True(t, ok, "rank %d's rows", i)
	}
}

// TestMemoryOfARestoreIsBounded reads a slice by columns, all in short runs. The memory of all
// reads at once stays below ReadOptions.MemoryBytes, and without that bound it does not.
func TestMemoryOfARestoreIsBounded(t *testing.T) {
	f := newFake()
	shape := []int64{4000, 8192}
	data := make([]byte, elements(shape))
	save(t, f, model{{name: "w", dtype: ckpt.U8, shape: shape, data: data}}, 1, 1)
	// A read waits so many moments, at most, for others.
	most := func(o ckpt.ReadOptions, waits int) int {
		r, err := ckpt.OpenRunOn(t.Context(), f, "/runs/a", ckpt.RunOptions{ReadOnly: true})
		require.NoError(t, err)
		k, err := r.Resolve(t.Context(), ckpt.ResolveOptions{Read: o})
		require.NoError(t, err)
		defer k.Close()
		_, err = k.Tensor(t.Context(), "w")
		require.NoError(t, err)
		var mu sync.Mutex
		var now, most int
		f.read = func(_ uint64, p []byte) error {
			mu.Lock()
			now += len(p)
			most = max(most, now)
			for range waits {
				mu.Unlock()
				time.Sleep(2 * time.Millisecond)
				mu.Lock()
				if most > 8<<20 {
					break
				}
			}
			now -= len(p)
			mu.Unlock()
			return nil
		}
		defer func() { f.read = func(uint64, []byte) error { return nil } }()
		require.NoError(t, k.ReadSlice(t.Context(), ckpt.SliceRequest{Name: "w", Offset: []int64{0, 0}, Shape: []int64{4000, 8000}, Dst: make([]byte, 4000*8000)}))
		return most
	}
	require.LessOrEqual(t, most(ckpt.ReadOptions{MemoryBytes: 8 << 20, OverRead: 0.1}, 1), 8<<20)
	require.Greater(t, most(ckpt.ReadOptions{OverRead: 0.1}, 1000), 8<<20)
	r, err := ckpt.OpenRunOn(t.Context(), f, "/runs/a", ckpt.RunOptions{ReadOnly: true})
	require.NoError(t, err)
	_, err = r.Resolve(t.Context(), ckpt.ResolveOptions{Read: ckpt.ReadOptions{MemoryBytes: 1}})
	require.ErrorIs(t, err, moraine.InvalidArgument)
}

// TestABadCopyIsReadFromAnotherRank: two ranks save the same slices. Where the bytes of one are
// wrong, a restore reads those of the other and names the bad range. Without another copy it fails
// with Corrupt.
func TestABadCopyIsReadFromAnotherRank(t *testing.T) {
	f := newFake()
	long := bytes.Repeat([]byte{1, 2, 3, 4}, 100_000)
	short := bytes.Repeat([]byte{5}, 1000)
	for rank := range uint32(2) {
		s, err := openRun(t, f, rank, 2).Begin(t.Context(), 1, ckpt.BeginOptions{})
		require.NoError(t, err)
		for name, data := range map[string][]byte{"long": long, "short": short} {
			require.NoError(t, s.AddTensor(t.Context(), ckpt.Tensor{Name: name, DType: ckpt.U8, Shape: []int64{int64(len(data))}, Data: data}))
		}
		require.NoError(t, s.Seal(t.Context()))
		<-s.Done()
	}
	require.NoError(t, f.check(t.Context(), stepKey(openRun(t, f, 0, 2), 1)))
	restore := func() ([]ckpt.BadRange, error) {
		k := resolve(t, f) // rank 0 prefers the copies of rank 0
		a, b := make([]byte, len(long)), make([]byte, len(short))
		err := k.Restore(t.Context(), []ckpt.SliceRequest{{Name: "long", Offset: []int64{0}, Shape: []int64{int64(len(a))}, Dst: a},
			{Name: "short", Offset: []int64{0}, Shape: []int64{int64(len(b))}, Dst: b}})
		if err == nil {
			require.True(t, bytes.Equal(long, a))
			require.Equal(t, short, b)
		}
		return k.BadRanges(), err
	}
	bad, err := restore()
	require.NoError(t, err)
	require.Empty(t, bad)

	dir := resolve(t, f).Info.Dir
	const file = "rank-0000%d-of-00002.safetensors"
	at := func(rank int, data []byte) int {
		return bytes.Index(f.files[f.dirs[uint64(dir)][fmt.Sprintf(file, rank)]], data[:100])
	}
	atLong, atShort := at(0, long), at(0, short)
	f.corrupt(dir, fmt.Sprintf(file, 0), atLong)
	f.corrupt(dir, fmt.Sprintf(file, 0), atShort)
	bad, err = restore()
	require.NoError(t, err)
	found := map[int64]int64{}
	for _, b := range bad {
		require.Equal(t, fmt.Sprintf(file, 0), b.File)
		require.Equal(t, moraine.NVMe, b.Level)
		require.ErrorIs(t, b.Err, moraine.Corrupt)
		found[b.Offset] = b.Bytes
	}
	require.Equal(t, map[int64]int64{int64(atLong): int64(len(long)), int64(atShort): int64(len(short))}, found)

	f.corrupt(dir, fmt.Sprintf(file, 1), at(1, long)+200)
	_, err = restore()
	require.ErrorIs(t, err, moraine.Corrupt)
}

// TestABlobIsReadIntoItsPlace: a place of another length is refused before a byte is read, however large the blob.
func TestABlobIsReadIntoItsPlace(t *testing.T) {
	f, m := newFake(), makeModel(3)
	save(t, f, m, 1, 1)
	k := resolve(t, f)
	want, err := k.ReadBlob(t.Context(), 0, "rng")
	require.NoError(t, err)
	read := k.BytesRead()
	for _, n := range []int{0, len(want) - 1, len(want) + 1} {
		require.ErrorIs(t, k.ReadBlobInto(t.Context(), 0, "rng", make([]byte, n)), moraine.InvalidArgument)
	}
	require.ErrorIs(t, k.ReadBlobInto(t.Context(), 1, "rng", nil), moraine.NotFound)
	require.Equal(t, read, k.BytesRead())
	dst := make([]byte, len(want))
	require.NoError(t, k.ReadBlobInto(t.Context(), 0, "rng", dst))
	require.Equal(t, want, dst)
	require.Greater(t, k.BytesRead(), read)
}

// TestABadRangeNamesItsLevel: a range whose bytes do not have their digest, or are lost, is reported with
// the level from which the bytes came. Bytes that the bucket has lost are not waited for.
func TestABadRangeNamesItsLevel(t *testing.T) {
	for _, from := range []struct {
		level   moraine.Level
		evicted bool
	}{{moraine.Memory, false}, {moraine.NVMe, false}, {moraine.Object, true}} {
		t.Run(from.level.String(), func(t *testing.T) {
			f, m := newFake(), makeModel(3)
			save(t, f, m, 1, 1)
			f.evicted, f.level, f.clean = from.evicted, from.level, from.evicted
			dir := resolve(t, f).Info.Dir
			const file, blob = "rank-00000-of-00001.safetensors", "rank-00000-of-00001.rng.blob"
			part := f.dirs[uint64(dir)][file]
			f.corrupt(dir, file, bytes.Index(f.files[part], m[0].data[:100]))
			f.corrupt(dir, blob, 0)
			k := resolve(t, f)
			_, err := k.ReadTensor(t.Context(), "embed.weight")
			require.ErrorIs(t, err, moraine.Corrupt)
			_, err = k.ReadBlob(t.Context(), 0, "rng")
			require.ErrorIs(t, err, moraine.Corrupt)
			bad := k.BadRanges()
			require.Len(t, bad, 2)
			require.Equal(t, from.level, bad[0].Level)
			require.Equal(t, from.level, bad[1].Level)

			reads := 0
			f.read = func(inode uint64, _ []byte) error {
				if inode != part {
					return nil
				}
				reads++
				return fail(moraine.Lost, "not there")
			}
			k = resolve(t, f)
			_, err = k.ReadTensor(t.Context(), "embed.weight")
			require.ErrorIs(t, err, moraine.Lost)
			bad = k.BadRanges()
			require.Len(t, bad, 1)
			require.Equal(t, from.level, bad[0].Level)
			require.LessOrEqual(t, reads, 3, "nothing is below: one read with others, and two")
		})
	}
}

// TestBytesLostInTheClusterComeFromTheObject: where the chunkservers have lost a range and an
// object has the file, a restore waits until the leader has evicted the file, and reads on. It names
// the lost range. Without an object it fails at once.
func TestBytesLostInTheClusterComeFromTheObject(t *testing.T) {
	f, m := newFake(), makeModel(3)
	save(t, f, m, 1, 1)
	dir := uint64(resolve(t, f).Info.Dir)
	part := f.dirs[dir]["rank-00000-of-00001.safetensors"]
	var mu sync.Mutex
	var left int
	lose := func(n int) {
		left = n
		f.read = func(inode uint64, _ []byte) error {
			mu.Lock()
			defer mu.Unlock()
			if inode != part || left == 0 {
				return nil
			}
			left--
			return fail(moraine.Lost, "3 of 6 chunks")
		}
	}
	restore := func() (*ckpt.Checkpoint, error) {
		r, err := ckpt.OpenRunOn(t.Context(), f, "/runs/a", ckpt.RunOptions{ReadOnly: true, Clock: instant{}})
		require.NoError(t, err)
		k, err := r.Resolve(t.Context(), ckpt.ResolveOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { _ = k.Close() })
		got, err := k.ReadTensor(t.Context(), "embed.weight")
		if err == nil {
			require.Equal(t, m[0].data, got)
		}
		return k, err
	}
	lose(1000)
	k, err := restore()
	require.ErrorIs(t, err, moraine.Lost)
	require.NotEmpty(t, k.BadRanges())
	require.Greater(t, left, 990, "no object: no wait")

	f.clean = true
	lose(4)
	k, err = restore()
	require.NoError(t, err)
	bad := k.BadRanges()
	require.NotEmpty(t, bad)
	require.Equal(t, "rank-00000-of-00001.safetensors", bad[0].File)
	require.Equal(t, moraine.NVMe, bad[0].Level)
	require.ErrorIs(t, bad[0].Err, moraine.Lost)
	lose(1000)
	_, err = restore()
	require.ErrorIs(t, err, moraine.Lost, "the leader did not evict it")
}
