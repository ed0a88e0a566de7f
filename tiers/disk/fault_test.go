package disk_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/tiers/tiertest"
)

// failing is a file system. Once armed, it fails one kind of call on one kind of
// file.
type failing struct {
	armed atomic.Bool
	kind  vfs.OpKind
	file  string // part of the path
	err   error
	hits  atomic.Int64
}

func (f *failing) rule(op vfs.Op) error {
	if !f.armed.Load() || op.Kind != f.kind || !strings.Contains(op.Path, f.file) {
		return nil
	}
	f.hits.Add(1)
	return f.err
}

func chunkNumber(t testing.TB, n int) tiertest.Chunk {
	return tiertest.MakeChunk(t, moraine.ChunkID{Stripe: moraine.StripeID(n + 1)}, 1, 30_000, uint64(n))
}

// TestIOErrorsTakeTheDeviceOut covers every step of every commit: the step fails,
// or it succeeds and its reply is lost. After the device is reopened, everything
// acknowledged before is there. What was not acknowledged is there whole or not at
// all.
func TestIOErrorsTakeTheDeviceOut(t *testing.T) {
	steps := []struct {
		kind vfs.OpKind
		file string
		do   func(t *testing.T, d *disk.Device) error
	}{
		{vfs.OpWrite, ".seg", putAnother},
		{vfs.OpSync, ".seg", putAnother},
		{vfs.OpWrite, ".seg", deleteOne},
		{vfs.OpSync, ".seg", deleteOne},
		{vfs.OpRead, ".seg", readOne},
		{vfs.OpOpen, ".seg", fillSegment},
		{vfs.OpAllocate, ".seg", fillSegment},
		{vfs.OpSyncDir, "segments", fillSegment},
		{vfs.OpPunchHole, ".seg", deleteAndReclaim},
		{vfs.OpTruncate, ".seg", func(t *testing.T, d *disk.Device) error {
			return errors.Join(fillSegment(t, d), d.ReclaimNow())
		}},
	}
	for _, s := range steps {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %s reply lost %v", s.kind, s.file, lost), func(t *testing.T) {
				cause := error(syscall.EIO)
				if lost {
					cause = vfs.Afterwards(cause)
				}
				checkTakenOut(t, &failing{kind: s.kind, file: s.file, err: cause}, s.do)
			})
		}
	}
}

func putAnother(t *testing.T, d *disk.Device) error { return chunkNumber(t, 10).Put(t, d) }

func deleteOne(t *testing.T, d *disk.Device) error {
	return d.Delete(t.Context(), moraine.ChunkID{Stripe: 3}, 2)
}

func deleteAndReclaim(t *testing.T, d *disk.Device) error {
	return errors.Join(deleteOne(t, d), d.ReclaimNow())
}

func readOne(t *testing.T, d *disk.Device) error {
	_, err := d.Get(t.Context(), moraine.ChunkID{Stripe: 1}, 0, make([]byte, 30_000))
	return err
}

func fillSegment(t *testing.T, d *disk.Device) error {
	for n := range 40 {
		if err := chunkNumber(t, 10+n).Put(t, d); err != nil {
			return err
		}
	}
	return nil
}

func checkTakenOut(t *testing.T, f *failing, do func(*testing.T, *disk.Device) error) {
	mem := vfs.NewMem(1)
	format(t, mem, "/d")
	d, err := disk.Open(config("/d"), disk.Deps{FS: vfs.NewFault(mem, f.rule)})
	require.NoError(t, err)
	for n := range 3 {
		require.NoError(t, chunkNumber(t, n).Put(t, d))
	}
	f.armed.Store(true)
	require.ErrorIs(t, do(t, d), moraine.IOError)
	hits := f.hits.Load()
	require.Positive(t, hits)
	require.ErrorIs(t, d.Err(), moraine.IOError)
	select {
	case <-d.Failed():
	default:
		t.Fatal("the device has failed and does not say so")
	}
	// Every call returns the error, and the device retries nothing.
	require.ErrorIs(t, putAnother(t, d), moraine.IOError)
	require.ErrorIs(t, deleteOne(t, d), moraine.IOError)
	require.ErrorIs(t, readOne(t, d), moraine.IOError)
	_, err = d.List(t.Context(), moraine.ChunkID{}, 1)
	require.ErrorIs(t, err, moraine.IOError)
	require.ErrorIs(t, d.ReclaimNow(), moraine.IOError)
	require.NoError(t, d.Close())
	require.Equal(t, hits, f.hits.Load(), "the failing call was made again")

	again := open(t, mem, config("/d"))
	for n := range 2 {
		chunkNumber(t, n).Check(t, again)
	}
	for _, h := range mustList(t, again) {
		_, err := again.Get(t.Context(), h.ID, 0, make([]byte, h.Length))
		require.NoError(t, err, "each chunk found is whole")
	}
}

// TestAFullFileSystemDamagesNothing checks that a full device refuses puts with
// NoSpace, accepts deletions, and continues when space is free.
func TestAFullFileSystemDamagesNothing(t *testing.T) {
	mem := vfs.NewMem(1)
	mem.SetCapacity(8 << 20)
	format(t, mem, "/d")
	cfg := config("/d")
	cfg.BallastBytes = 256 << 10
	d := open(t, mem, cfg)
	n := 0
	for ; n < 1000; n++ {
		if err := chunkNumber(t, n).Put(t, d); err != nil {
			require.ErrorIs(t, err, moraine.NoSpace)
			break
		}
	}
	require.Greater(t, n, 100)
	require.NoError(t, d.Err())
	require.True(t, d.Usage().Full())
	for i := range n {
		chunkNumber(t, i).Check(t, d)
	}
	for i := range n / 2 {
		require.NoError(t, d.Delete(t.Context(), moraine.ChunkID{Stripe: moraine.StripeID(i + 1)}, 2))
		if i%20 == 19 { // as the interval does
			require.NoError(t, d.ReclaimNow())
		}
	}
	require.NoError(t, d.ReclaimNow())
	require.NoError(t, chunkNumber(t, 0).Put(t, d), "space is free again")
	require.NoError(t, d.Close())
	d = open(t, mem, cfg)
	require.Len(t, mustList(t, d), n-n/2+1)
}

// TestAWriteThatFindsTheDiskFullIsVoid makes the second half of a put's write fail.
func TestAWriteThatFindsTheDiskFullIsVoid(t *testing.T) {
	mem := vfs.NewMem(1)
	format(t, mem, "/d")
	var armed atomic.Bool
	d, err := disk.Open(config("/d"), disk.Deps{FS: vfs.NewFault(mem, func(op vfs.Op) error {
		if armed.Load() && op.Kind == vfs.OpWrite && op.Len > 4096 {
			return syscall.ENOSPC
		}
		return nil
	})})
	require.NoError(t, err)
	require.NoError(t, chunkNumber(t, 0).Put(t, d))
	armed.Store(true)
	require.ErrorIs(t, chunkNumber(t, 1).Put(t, d), moraine.NoSpace)
	armed.Store(false)
	require.NoError(t, d.Err())
	require.NoError(t, chunkNumber(t, 2).Put(t, d))
	require.NoError(t, d.Close())
	require.NoError(t, mem.RemoveAll("/d/index"))
	again := open(t, mem, config("/d"))
	require.Len(t, mustList(t, again), 2)
	require.Zero(t, again.Recovered().Torn)
}

func TestTheCapacityIsKept(t *testing.T) {
	mem := vfs.NewMem(1)
	format(t, mem, "/d")
	cfg := config("/d")
	cfg.CapacityBytes = 200_000
	d := open(t, mem, cfg)
	n := 0
	for ; chunkNumber(t, n).Put(t, d) == nil; n++ {
		require.Less(t, n, 10)
	}
	require.ErrorIs(t, chunkNumber(t, n).Put(t, d), moraine.NoSpace)
	require.LessOrEqual(t, d.Usage().UsedBytes, cfg.CapacityBytes)
	require.NoError(t, d.Delete(t.Context(), moraine.ChunkID{Stripe: 1}, 2))
	require.ErrorIs(t, chunkNumber(t, n).Put(t, d), moraine.NoSpace, "the space is not given back yet")
	require.NoError(t, d.ReclaimNow())
	require.NoError(t, chunkNumber(t, n).Put(t, d))
}

// TestSpaceIsGivenBack deletes nearly all chunks of many segments.
func TestSpaceIsGivenBack(t *testing.T) {
	mem := vfs.NewMem(1)
	mem.SetCapacity(64 << 20)
	format(t, mem, "/d")
	d := open(t, mem, config("/d"))
	for n := range 200 {
		require.NoError(t, chunkNumber(t, n).Put(t, d))
	}
	full, err := mem.Usage("/d")
	require.NoError(t, err)
	for n := range 200 {
		if n != 100 {
			require.NoError(t, d.Delete(t.Context(), moraine.ChunkID{Stripe: moraine.StripeID(n + 1)}, 2))
		}
	}
	require.NoError(t, d.Close())
	d = open(t, mem, config("/d"))
	require.NoError(t, d.ReclaimNow())
	empty, err := mem.Usage("/d")
	require.NoError(t, err)
	require.Greater(t, empty.Free, full.Free+5<<20)
	names, err := mem.List("/d/segments")
	require.NoError(t, err)
	require.LessOrEqual(t, len(names), 3, "whole segments are removed")
	chunkNumber(t, 100).Check(t, d)
	require.Equal(t, uint64(1), d.Usage().Chunks)
	require.Less(t, d.Usage().UsedBytes, uint64(100_000))
}
