package ckpt_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// instant is the system's clock, but its waits end at once.
type instant struct{ clock.System }

func (instant) After(time.Duration) <-chan time.Time {
	c := make(chan time.Time, 1)
	c <- time.Time{}
	return c
}

func openRun(t testing.TB, f *fakeCluster, rank, world uint32) *ckpt.Run {
	t.Helper()
	r, err := ckpt.OpenRunOn(t.Context(), f, "/runs/a", ckpt.RunOptions{Launch: ckpt.Launch{Name: "l1"}, Rank: rank, World: world,
		StagingBytes: 2 * ckpt.SegmentSize, Clock: instant{}})
	require.NoError(t, err)
	t.Cleanup(func() { r.Close(context.Background()) })
	return r
}

// model is the tensors that a test saves, whole.
type model []struct {
	name  string
	dtype ckpt.DType
	shape []int64
	data  []byte
}

func makeModel(seed uint64) model {
	m := model{
		{name: "embed.weight", dtype: safetensors.BF16, shape: []int64{101, 64}},
		{name: "layer.0.weight", dtype: safetensors.F32, shape: []int64{64, 48}},
		{name: "layer.0.norm", dtype: safetensors.F32, shape: []int64{7}},
		{name: "exp_avg", dtype: safetensors.F32, shape: []int64{33, 5, 9}},
		{name: "mask", dtype: safetensors.Bool, shape: []int64{13}},
		{name: "step", dtype: safetensors.I64, shape: []int64{}},
		{name: "none", dtype: safetensors.F16, shape: []int64{0, 4}},
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range m {
		n := int64(m[i].dtype.Size())
		for _, s := range m[i].shape {
			n *= s
		}
		m[i].data = make([]byte, n)
		for j := range m[i].data {
			m[i].data[j] = byte(rng.Uint32())
		}
	}
	return m
}

// rows cuts a tensor by its first dimension as FSDP does: even pieces, the last ones shorter or
// empty. Every rank has a scalar.
func rows(shape []int64, rank, world uint32) (offset, n int64) {
	per := (shape[0] + int64(world) - 1) / int64(world)
	offset = min(per*int64(rank), shape[0])
	return offset, min(per, shape[0]-offset)
}

func addModel(ctx context.Context, s *ckpt.Part, m model, rank, world uint32) error {
	for _, x := range m {
		t := ckpt.Tensor{Name: x.name, DType: x.dtype, Shape: x.shape, Data: x.data}
		if len(x.shape) > 0 && x.shape[0] > 0 {
			off, n := rows(x.shape, rank, world)
			row := int64(len(x.data)) / x.shape[0]
			t.Global, t.Offset, t.Shape = x.shape, make([]int64, len(x.shape)), append([]int64{n}, x.shape[1:]...)
			t.Offset[0], t.Data = off, x.data[off*row:(off+n)*row]
		}
		if err := s.AddTensor(ctx, t); err != nil {
			return err
		}
	}
	return s.AddBlob(ctx, "rng", fmt.Appendf(nil, "state of rank %d", rank))
}

// save writes the model from world ranks and commits it.
func save(t testing.TB, f *fakeCluster, m model, step uint64, world uint32) ckpt.StepInfo {
	t.Helper()
	ctx := t.Context()
	saves := make([]*ckpt.Part, world)
	for rank := range world {
		r := openRun(t, f, rank, world)
		s, err := r.Begin(ctx, step, ckpt.BeginOptions{})
		require.NoError(t, err)
		require.NoError(t, addModel(ctx, s, m, rank, world))
		require.NoError(t, s.Seal(ctx))
		saves[rank] = s
	}
	for _, s := range saves {
		<-s.Done()
	}
	require.NoError(t, f.check(ctx, &wire.StepKey{Run: uint64(f.runs["a"].id), Attempt: f.runs["a"].attempt, Step: step}))
	info, err := saves[0].Wait(ctx, moraine.NVMe)
	require.NoError(t, err)
	return info
}

func TestSaveRestoreByOtherRanks(t *testing.T) {
	f, m := newFake(), makeModel(1)
	info := save(t, f, m, 100, 4)
	require.Equal(t, uint32(4), info.World)

	r, err := ckpt.OpenRunOn(t.Context(), f, "/runs/a", ckpt.RunOptions{ReadOnly: true})
	require.NoError(t, err)
	defer r.Close(t.Context())
	k, err := r.Resolve(t.Context(), ckpt.ResolveOptions{})
	require.NoError(t, err)
	defer k.Close()
	for _, world := range []uint32{1, 3, 7} {
		for rank := range world {
			for _, x := range m {
				if len(x.shape) == 0 || x.shape[0] == 0 {
					got, err := k.ReadTensor(t.Context(), x.name)
					require.NoError(t, err)
					require.Equal(t, x.data, got)
					continue
				}
				off, n := rows(x.shape, rank, world)
				row := int64(len(x.data)) / x.shape[0]
				offset := make([]int64, len(x.shape))
				offset[0] = off
				dst := make([]byte, n*row)
				require.NoError(t, k.ReadSlice(t.Context(), ckpt.SliceRequest{Name: x.name, Offset: offset,
					Shape: append([]int64{n}, x.shape[1:]...), Dst: dst}))
				require.True(t, bytes.Equal(x.data[off*row:(off+n)*row], dst), "%s of rank %d of %d", x.name, rank, world)
			}
		}
	}
	for rank := range uint32(4) {
		require.Equal(t, []string{"rng"}, k.BlobNames(rank))
		b, err := k.ReadBlob(t.Context(), rank, "rng")
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("state of rank %d", rank), string(b))
	}
	rep, err := k.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, len(m), rep.Tensors)
	require.Equal(t, 8, rep.Files)
}

// TestRestoreByColumns reads slices cut across all dimensions from parts cut by rows.
func TestRestoreByColumns(t *testing.T) {
	f := newFake()
	shape := []int64{301, 7, 1030} // rows of 7,210 bytes: windows, with gaps and without
	data := make([]byte, 301*7*1030)
	rand.NewChaCha8([32]byte{3}).Read(data)
	save(t, f, model{{name: "w", dtype: safetensors.U8, shape: shape, data: data}}, 1, 3)
	k := resolve(t, f)
	rng := rand.New(rand.NewPCG(5, 5))
	for range 50 {
		offset, size := make([]int64, 3), make([]int64, 3)
		n := int64(1)
		for d := range 3 {
			offset[d] = rng.Int64N(shape[d])
			size[d] = 1 + rng.Int64N(shape[d]-offset[d])
			n *= size[d]
		}
		dst := make([]byte, n)
		require.NoError(t, k.ReadSlice(t.Context(), ckpt.SliceRequest{Name: "w", Offset: offset, Shape: size, Dst: dst}))
		require.True(t, bytes.Equal(pick(data, shape, offset, size, 1), dst), "%v at %v", size, offset)
	}
	dst := make([]byte, 10)
	require.ErrorIs(t, k.ReadSlice(t.Context(), ckpt.SliceRequest{Name: "w", Offset: []int64{300, 0, 0}, Shape: []int64{2, 1, 5}, Dst: dst}), moraine.InvalidArgument)
	require.ErrorIs(t, k.ReadSlice(t.Context(), ckpt.SliceRequest{Name: "w", Offset: []int64{0, 0, 0}, Shape: []int64{1, 1, 5}, Dst: dst}), moraine.InvalidArgument)
	require.ErrorIs(t, k.ReadSlice(t.Context(), ckpt.SliceRequest{Name: "x"}), moraine.NotFound)
	_, err := k.ReadBlob(t.Context(), 0, "none")
	require.ErrorIs(t, err, moraine.NotFound)
}

// TestReadsOnlyWhatItNeeds compares the bytes read with the bytes wanted.
func TestReadsOnlyWhatItNeeds(t *testing.T) {
	f := newFake()
	data := make([]byte, 4096*1024)
	info := save(t, f, model{{name: "w", dtype: safetensors.U8, shape: []int64{4096, 1024}, data: data}}, 1, 4)
	require.Equal(t, uint64(1), info.Step)
	k := resolve(t, f)
	dst := make([]byte, 10*1024)
	require.NoError(t, k.ReadSlice(t.Context(), ckpt.SliceRequest{Name: "w", Offset: []int64{1020, 0}, Shape: []int64{10, 1024}, Dst: dst}))
	require.Equal(t, int64(len(dst)), k.BytesRead())
}

func stepKey(r *ckpt.Run, step uint64) *wire.StepKey {
	return &wire.StepKey{Run: uint64(r.ID()), Attempt: r.Attempt(), Step: step}
}

func resolve(t *testing.T, f *fakeCluster) *ckpt.Checkpoint {
	t.Helper()
	k, err := openRun(t, f, 0, 1).Resolve(t.Context(), ckpt.ResolveOptions{Fix: true})
	require.NoError(t, err)
	t.Cleanup(func() { k.Close() })
	return k
}

func TestVerifyFindsEveryFlippedByte(t *testing.T) {
	f, m := newFake(), makeModel(2)
	info := save(t, f, m, 5, 2)
	rng := rand.New(rand.NewPCG(7, 7))
	for _, name := range []string{"rank-00000-of-00002.safetensors", "rank-00001-of-00002.safetensors", "rank-00001-of-00002.rng.blob"} {
		size := len(f.files[f.dirs[uint64(info.Dir)][name]])
		for range 20 {
			at := rng.IntN(size)
			f.corrupt(info.Dir, name, at)
			_, err := resolve(t, f).Verify(t.Context())
			require.ErrorIs(t, err, moraine.Corrupt, "%s at %d", name, at)
			require.ErrorContains(t, err, name)
			f.corrupt(info.Dir, name, at)
		}
	}
	_, err := resolve(t, f).Verify(t.Context())
	require.NoError(t, err)
}

func TestReadFindsADamagedSlice(t *testing.T) {
	f, m := newFake(), makeModel(3)
	info := save(t, f, m, 5, 1)
	f.corrupt(info.Dir, "rank-00000-of-00001.safetensors", len(f.files[f.dirs[uint64(info.Dir)]["rank-00000-of-00001.safetensors"]])-1)
	_, err := resolve(t, f).ReadTensor(t.Context(), m[4].name) // the narrowest type comes last
	require.ErrorIs(t, err, moraine.Corrupt)
}

func TestSeveralSlicesOfOneTensorOnOneRank(t *testing.T) {
	f, ctx := newFake(), t.Context()
	data := []byte("0123456789abcdef")
	r := openRun(t, f, 0, 1)
	s, err := r.Begin(ctx, 1, ckpt.BeginOptions{})
	require.NoError(t, err)
	for i := int64(0); i < 4; i++ {
		require.NoError(t, s.AddTensor(ctx, ckpt.Tensor{Name: "w", DType: safetensors.U8, Global: []int64{16}, Offset: []int64{4 * i},
			Shape: []int64{4}, Data: data[4*i : 4*i+4]}))
	}
	require.NoError(t, s.Seal(ctx))
	<-s.Done()
	require.NoError(t, f.check(ctx, &wire.StepKey{Run: uint64(r.ID()), Attempt: r.Attempt(), Step: 1}))
	k := resolve(t, f)
	require.Len(t, k.Files(), 4)
	got, err := k.ReadTensor(ctx, "w")
	require.NoError(t, err)
	require.Equal(t, data, got)
	_, err = k.Verify(ctx)
	require.NoError(t, err)
}

// TestLostReplies is the fault table of a save: each request fails once, and each succeeds once
// with a lost reply. The save must succeed.
func TestLostReplies(t *testing.T) {
	for _, op := range []string{"BeginStep", "create", "write", "commit", "SealPart"} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s lost=%v", op, lost), func(t *testing.T) {
				f, m := newFake(), makeModel(4)
				var once sync.Once
				hook := func(got string) (err error) {
					if got == op {
						once.Do(func() { err = fail(moraine.Timeout, "%s", op) })
					}
					return err
				}
				if lost {
					f.after = hook
				} else {
					f.before = hook
				}
				save(t, f, m, 9, 2)
				k := resolve(t, f)
				_, err := k.Verify(t.Context())
				require.NoError(t, err)
			})
		}
	}
}

func TestFencedAttemptCannotSave(t *testing.T) {
	f, ctx := newFake(), t.Context()
	old := openRun(t, f, 0, 1)
	next, err := ckpt.OpenRunOn(ctx, f, "/runs/a", ckpt.RunOptions{Launch: ckpt.Launch{Name: "l2"}})
	require.NoError(t, err)
	defer next.Close(ctx)
	s, err := old.Begin(ctx, 1, ckpt.BeginOptions{})
	require.NoError(t, err)
	_, err = s.Wait(ctx, moraine.NVMe)
	require.ErrorIs(t, err, moraine.Fenced)
	require.ErrorIs(t, s.AddBlob(ctx, "x", nil), moraine.Fenced)
	// The failed save does not block the next.
	_, err = old.Begin(ctx, 2, ckpt.BeginOptions{})
	require.NoError(t, err)
}

func TestWaitNamesMissingRanks(t *testing.T) {
	f, ctx := newFake(), t.Context()
	for rank := range uint32(3) {
		r := openRun(t, f, rank, 4)
		s, err := r.Begin(ctx, 7, ckpt.BeginOptions{})
		require.NoError(t, err)
		require.NoError(t, s.Seal(ctx))
		<-s.Done()
		if rank < 2 {
			continue
		}
		go f.Meta(context.Background(), &wire.MetaRequest{Op: &wire.MetaRequest_AbortStep{AbortStep: &wire.AbortStep{
			Key: &wire.StepKey{Run: uint64(r.ID()), Attempt: 1, Step: 7}, Reason: "nobody sealed for 10s"}}})
		_, err = s.Wait(ctx, moraine.NVMe)
		require.ErrorIs(t, err, moraine.Aborted)
		require.ErrorContains(t, err, "missing: [3]")
		var missing *ckpt.MissingError
		require.ErrorAs(t, err, &missing)
		require.Equal(t, []uint32{3}, missing.Ranks)
	}
}

func TestAbortTellsTheOthers(t *testing.T) {
	f, ctx := newFake(), t.Context()
	r := openRun(t, f, 0, 2)
	s, err := r.Begin(ctx, 7, ckpt.BeginOptions{})
	require.NoError(t, err)
	require.NoError(t, s.AddBlob(ctx, "x", []byte("1")))
	s.Abort(errors.New("the loss is not a number"))
	_, err = s.Wait(ctx, moraine.NVMe)
	require.ErrorIs(t, err, moraine.Aborted)
	require.ErrorContains(t, err, "not a number")
	require.ErrorIs(t, s.AddBlob(ctx, "y", nil), moraine.Aborted)
	require.Equal(t, wire.StepState_STEP_STATE_ABORTED, f.runs["a"].steps[7].step.State)
}

// A rank that cannot write its part ends the step for all. The others, who have sealed, learn
// the reason and the rank, and the failed rank gets its own error.
func TestFailedRankTellsTheOthers(t *testing.T) {
	f := newFake()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var full atomic.Bool
	f.before = func(op string) error {
		if op == "write" && full.Load() {
			return fail(moraine.NoSpace, "no device has room")
		}
		return nil
	}
	var saves []*ckpt.Part
	for rank := range uint32(3) {
		s, err := openRun(t, f, rank, 3).Begin(ctx, 7, ckpt.BeginOptions{})
		require.NoError(t, err)
		require.NoError(t, s.AddBlob(ctx, "x", []byte("1")))
		full.Store(rank == 1)
		require.NoError(t, s.Seal(ctx))
		<-s.Done()
		saves = append(saves, s)
		if rank == 1 {
			break
		}
	}
	_, err := saves[0].Wait(ctx, moraine.NVMe)
	require.ErrorIs(t, err, moraine.Aborted)
	require.ErrorContains(t, err, "rank 1 could not write its part")
	require.ErrorContains(t, err, "no device has room")
	_, err = saves[1].Wait(ctx, moraine.NVMe)
	require.ErrorIs(t, err, moraine.NoSpace)

	late, err := openRun(t, f, 2, 3).Begin(ctx, 7, ckpt.BeginOptions{})
	require.NoError(t, err)
	<-late.Done()
	_, err = late.Wait(ctx, moraine.NVMe)
	require.ErrorIs(t, err, moraine.Aborted)
	require.ErrorContains(t, err, "rank 1 could not write its part")
}

func TestOneUnsealedSaveAtATime(t *testing.T) {
	f, ctx := newFake(), t.Context()
	r := openRun(t, f, 0, 1)
	s, err := r.Begin(ctx, 1, ckpt.BeginOptions{})
	require.NoError(t, err)
	_, err = r.Begin(ctx, 2, ckpt.BeginOptions{})
	require.ErrorIs(t, err, moraine.InvalidArgument)
	require.NoError(t, s.Seal(ctx))
	require.ErrorIs(t, s.Seal(ctx), moraine.InvalidArgument)
	_, err = r.Begin(ctx, 2, ckpt.BeginOptions{})
	require.NoError(t, err)
	_, err = r.Begin(ctx, 3, ckpt.BeginOptions{Level: moraine.Object})
	require.ErrorIs(t, err, moraine.InvalidArgument)
}

// TestStagingIsBounded delays the second save until the first is written, and refuses a part
// that can never fit. TestStagingThatChangedIsNotSealed flips a bit of the staging memory
// between the seal and the write.
func TestStagingThatChangedIsNotSealed(t *testing.T) {
	f := newFake()
	var s *ckpt.Part
	staged := make(chan struct{})
	var once sync.Once
	f.before = func(op string) error {
		if op == "create" {
			<-staged // s is set by now
			once.Do(func() { ckpt.StagedTensor(s, "exp_avg")[0][4321] ^= 1 << 3 })
		}
		return nil
	}
	r := openRun(t, f, 0, 1)
	var err error
	s, err = r.Begin(t.Context(), 1, ckpt.BeginOptions{})
	require.NoError(t, err)
	require.NoError(t, addModel(t.Context(), s, makeModel(1), 0, 1))
	close(staged)
	require.NoError(t, s.Seal(t.Context()))
	_, err = s.Wait(t.Context(), moraine.NVMe)
	require.ErrorIs(t, err, moraine.Corrupt)
	require.ErrorContains(t, err, `"exp_avg"`)
	require.Empty(t, f.run(uint64(r.ID())).steps[1].parts, "nothing may be sealed")
}

func TestStagingIsBounded(t *testing.T) {
	f, ctx := newFake(), t.Context()
	gate := make(chan struct{})
	f.before = func(op string) error {
		if op == "commit" {
			<-gate
		}
		return nil
	}
	r := openRun(t, f, 0, 1) // two segments
	big := make([]byte, ckpt.SegmentSize+1)
	tensor := ckpt.Tensor{Name: "w", DType: safetensors.U8, Shape: []int64{int64(len(big))}, Data: big}
	s1, err := r.Begin(ctx, 1, ckpt.BeginOptions{})
	require.NoError(t, err)
	require.NoError(t, s1.AddTensor(ctx, tensor))
	require.NoError(t, s1.Seal(ctx))
	s2, err := r.Begin(ctx, 2, ckpt.BeginOptions{})
	require.NoError(t, err)
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s2.AddTensor(short, tensor), moraine.Timeout)
	close(gate)
	require.NoError(t, s2.AddTensor(ctx, tensor))
	tensor.Name = "another"
	require.ErrorIs(t, s2.AddTensor(ctx, tensor), moraine.TooLarge)
}

func TestAddTensorRefuses(t *testing.T) {
	f, ctx := newFake(), t.Context()
	s, err := openRun(t, f, 0, 1).Begin(ctx, 1, ckpt.BeginOptions{})
	require.NoError(t, err)
	for name, x := range map[string]ckpt.Tensor{
		"no name":       {DType: safetensors.U8, Shape: []int64{1}, Data: []byte{1}},
		"reserved name": {Name: "__metadata__", DType: safetensors.U8, Shape: []int64{1}, Data: []byte{1}},
		"no type":       {Name: "a", Shape: []int64{1}, Data: []byte{1}},
		"too few bytes": {Name: "a", DType: safetensors.F32, Shape: []int64{1}, Data: []byte{1}},
		"outside":       {Name: "a", DType: safetensors.U8, Shape: []int64{2}, Global: []int64{2}, Offset: []int64{1}, Data: []byte{1, 2}},
		"dimensions":    {Name: "a", DType: safetensors.U8, Shape: []int64{2}, Global: []int64{2, 1}, Offset: []int64{0}, Data: []byte{1, 2}},
		"half a slice":  {Name: "a", DType: safetensors.U8, Shape: []int64{2}, Global: []int64{2}, Data: []byte{1, 2}},
	} {
		require.ErrorIs(t, s.AddTensor(ctx, x), moraine.InvalidArgument, name)
	}
	for _, name := range []string{"", "a/b", ".hidden", "a b"} {
		require.ErrorIs(t, s.AddBlob(ctx, name, nil), moraine.InvalidArgument, name)
	}
}

// TestBeginReservesTheBytes: with BeginOptions.Bytes, Begin returns why the service refuses the part,
// before the trainer copies a byte.
func TestBeginReservesTheBytes(t *testing.T) {
	f, ctx := newFake(), t.Context()
	r, err := ckpt.OpenRunOn(ctx, f, "/runs/a", ckpt.RunOptions{Launch: ckpt.Launch{Name: "l1"}})
	require.NoError(t, err)
	defer r.Close(ctx)
	f.before = func(op string) error {
		if op == "BeginStep" {
			return fail(moraine.QuotaExceeded, "no room for the step")
		}
		return nil
	}
	_, err = r.Begin(ctx, 1, ckpt.BeginOptions{Bytes: 1 << 20})
	require.ErrorIs(t, err, moraine.QuotaExceeded)
	require.ErrorContains(t, err, "no room for the step")
	s, err := r.Begin(ctx, 2, ckpt.BeginOptions{}) // nothing is announced: a later call has the error
	require.NoError(t, err)
	<-s.Done()
	require.ErrorIs(t, s.Seal(ctx), moraine.QuotaExceeded)
}
