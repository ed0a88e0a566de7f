package disk_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/tiers/tiertest"
)

// Eight puts run concurrently, as on the write path. syncs/op shows how well they
// share syncs.
func benchmarkPut(b *testing.B, length int) {
	dir := b.TempDir() + "/device"
	format(b, vfs.OS{}, dir)
	var syncs atomic.Int64
	d, err := disk.Open(disk.Config{Dir: dir}, disk.Deps{FS: countingSyncs{vfs.OS{}, &syncs}})
	require.NoError(b, err)
	defer d.Close()
	var stripe atomic.Uint64
	b.SetBytes(int64(length))
	b.SetParallelism(4)
	b.RunParallel(func(pb *testing.PB) {
		c := tiertest.MakeChunk(b, moraine.ChunkID{}, 1, length, 1)
		for pb.Next() {
			c.Header.ID.Stripe = moraine.StripeID(stripe.Add(1))
			if err := d.Put(context.Background(), c.Header, c.Data, c.Sums); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(syncs.Load())/float64(b.N), "syncs/op")
}

func BenchmarkPut4MiB(b *testing.B)  { benchmarkPut(b, 4<<20) }
func BenchmarkPut16KiB(b *testing.B) { benchmarkPut(b, 16<<10) }

// countingSyncs counts the syncs of files. It passes on everything else unchanged,
// vectored writes included.
type countingSyncs struct {
	vfs.OS
	n *atomic.Int64
}

type countingFile struct {
	vfs.File
	n *atomic.Int64
}

func (c countingSyncs) Open(name string, flag vfs.OpenFlag) (vfs.File, error) {
	f, err := c.OS.Open(name, flag)
	if err != nil {
		return nil, err
	}
	return countingFile{f, c.n}, nil
}

func (c countingFile) Sync() error {
	c.n.Add(1)
	return c.File.Sync()
}

func (c countingFile) WriteVAt(bufs [][]byte, off int64) (int, error) {
	return vfs.WriteAll(c.File, bufs, off)
}

func BenchmarkView4KiBAtRandom(b *testing.B) {
	dir := b.TempDir() + "/device"
	format(b, vfs.OS{}, dir)
	d, err := disk.Open(disk.Config{Dir: dir}, disk.Deps{FS: vfs.OS{}})
	require.NoError(b, err)
	defer d.Close()
	const chunks, length = 64, 4 << 20
	c := tiertest.MakeChunk(b, moraine.ChunkID{}, 1, length, 1)
	for n := range chunks {
		c.Header.ID.Stripe = moraine.StripeID(n)
		require.NoError(b, c.Put(b, d))
	}
	var turn atomic.Int64
	b.SetBytes(4096)
	b.SetParallelism(8)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			n := turn.Add(1) * 7919
			v, err := d.View(context.Background(), moraine.ChunkID{Stripe: moraine.StripeID(n % chunks)}, n*4096%(length-4096), 4096)
			if err != nil {
				b.Error(err)
				return
			}
			v.Release()
		}
	})
}
