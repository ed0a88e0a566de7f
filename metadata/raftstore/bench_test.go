package raftstore_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// benchGroup runs a group on the machine's disk.
func benchGroup(b *testing.B, size int) *group {
	g := newGroup(b, size, func(name string, cfg *raftstore.Config) {
		cfg.Dir = b.TempDir() + "/" + name
		cfg.HeartbeatTimeout, cfg.SegmentBytes = 600*time.Millisecond, 64<<20
		cfg.MemTableBytes, cfg.CacheBytes = 32<<20, 64<<20
	})
	dirs := map[string]string{}
	tune := g.tune
	g.tune = func(name string, cfg *raftstore.Config) { // the same directory each time
		tune(name, cfg)
		if dirs[name] == "" {
			dirs[name] = cfg.Dir
		}
		cfg.Dir = dirs[name]
	}
	for _, name := range g.names {
		g.fs[name] = vfs.OS{}
	}
	g.bootstrap()
	g.startAll()
	g.propose("set key value")
	return g
}

func BenchmarkPropose(b *testing.B) {
	for _, size := range []int{1, 3} {
		b.Run(fmt.Sprint("nodes=", size), func(b *testing.B) {
			g := benchGroup(b, size)
			n := g.leader()
			var next atomic.Uint64
			b.SetParallelism(32)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					entry := fmt.Appendf(nil, "set key%09d %0100d", next.Add(1), 0)
					if _, err := n.store.Propose(context.Background(), entry); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// BenchmarkRead is a stat: a barrier and two point reads.
func BenchmarkRead(b *testing.B) {
	for _, size := range []int{1, 3} {
		b.Run(fmt.Sprint("nodes=", size), func(b *testing.B) {
			g := benchGroup(b, size)
			n := g.leader()
			require.NoError(b, n.store.ReadBarrier(context.Background()))
			b.SetParallelism(32)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					err := n.store.ReadBarrier(context.Background())
					if err == nil {
						err = n.store.View(func(r kvtx.Reader, _ uint64) error {
							if _, _, err := r.Get([]byte("key")); err != nil {
								return err
							}
							_, _, err := r.Get([]byte("other"))
							return err
						})
					}
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

func BenchmarkReadAlone(b *testing.B) {
	g := benchGroup(b, 3)
	n := g.leader()
	for b.Loop() {
		if err := n.store.ReadBarrier(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
