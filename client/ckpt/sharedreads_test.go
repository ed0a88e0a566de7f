package ckpt_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/readonce"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

// slowReads counts the bytes that are read of a cluster's files, and may fail or delay reads.
type slowReads struct {
	*fakeCluster
	bytes  atomic.Int64
	before func(ctx context.Context) error
}

type slowReader struct {
	ckpt.FileReader
	s *slowReads
}

func (s *slowReads) Open(ctx context.Context, inode moraine.InodeID) (ckpt.FileReader, error) {
	r, err := s.fakeCluster.Open(ctx, inode)
	return slowReader{r, s}, err
}

func (r slowReader) ReadRange(ctx context.Context, dst []byte, off int64) error {
	if err := r.s.before(ctx); err != nil {
		return err
	}
	r.s.bytes.Add(int64(len(dst)))
	return r.FileReader.ReadRange(ctx, dst, off)
}

// TestSharedReads: readers that share get the right bytes whatever they read at once, in memory that
// holds a part of them only. One that fails or is canceled ends no other one.
func TestSharedReads(t *testing.T) {
	f := newFake()
	r := openRun(t, f, 0, 1)
	s := begin(t, r, 1)
	want := make([]byte, 5<<20)
	rand.NewChaCha8([32]byte{1}).Read(want)
	require.NoError(t, s.AddTensor(t.Context(), ckpt.Tensor{Name: "w", DType: safetensors.U8, Shape: []int64{int64(len(want))}, Data: want}))
	require.NoError(t, s.Seal(t.Context()))
	<-s.Done()
	require.NoError(t, f.check(t.Context(), stepKey(r, 1)))

	slow := &slowReads{fakeCluster: f, before: func(context.Context) error { return nil }}
	open := func(shared *readonce.Reads) *ckpt.Checkpoint {
		r, err := ckpt.OpenRunOn(t.Context(), slow, "/runs/a", ckpt.RunOptions{ReadOnly: true})
		require.NoError(t, err)
		k, err := r.Resolve(t.Context(), ckpt.ResolveOptions{})
		require.NoError(t, err)
		_, err = k.Tensor(t.Context(), "w")
		require.NoError(t, err)
		k.ShareReads(shared)
		t.Cleanup(func() { _ = k.Close(); _ = r.Close(context.Background()) })
		return k
	}
	read := func(ctx context.Context, k *ckpt.Checkpoint, from, to int64) error {
		dst := make([]byte, to-from)
		err := k.ReadSlice(ctx, ckpt.SliceRequest{Name: "w", Offset: []int64{from}, Shape: []int64{to - from}, Dst: dst})
		if err == nil && string(dst) != string(want[from:to]) {
			return errors.New("wrong bytes")
		}
		return err
	}

	small := readonce.New(1 << 20)
	ks := []*ckpt.Checkpoint{open(small), open(small), open(small), open(small)}
	var all sync.WaitGroup
	var failed atomic.Pointer[error]
	for _, k := range ks {
		all.Go(func() {
			for i := range int64(40) {
				from := i % 9 * 500_000
				if err := read(t.Context(), k, from, from+300_000+i%3); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	all.Wait()
	require.Nil(t, failed.Load())

	shared := readonce.New(8 << 20)
	a, b := open(shared), open(shared)
	reading, canceled := make(chan struct{}), make(chan struct{})
	var once sync.Once
	slow.before = func(ctx context.Context) error {
		leads := false
		once.Do(func() { leads = true })
		if !leads {
			return nil
		}
		close(reading)
		<-ctx.Done()
		close(canceled)
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	all.Go(func() {
		if err := read(ctx, a, 0, 1<<20); !errors.Is(err, context.Canceled) {
			failed.Store(&err)
		}
	})
	<-reading
	all.Go(func() {
		if err := read(t.Context(), b, 0, 1<<20); err != nil {
			failed.Store(&err)
		}
	})
	cancel()
	<-canceled
	all.Wait()
	require.Nil(t, failed.Load())
	before := slow.bytes.Load()
	require.NoError(t, read(t.Context(), a, 0, 1<<20))
	require.Equal(t, before, slow.bytes.Load(), "the other one has read it")
	shared.Forget()
	require.NoError(t, read(t.Context(), a, 0, 1<<20))
	require.Equal(t, before+1<<20, slow.bytes.Load())
}
