package metadata_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// benchCluster is three servers in one process with logs on the machine's disk.
func benchCluster(b *testing.B) (*metadata.Server, context.Context) {
	dir := b.TempDir()
	c := newRaftClusterOn(b, 3, func(name string) (vfs.FS, string) { return vfs.OS{}, dir + "/" + name })
	leader := c.servers[c.leader()]
	return leader, transport.WithPeer(b.Context(), peer(transport.RoleClient, "c1"))
}

// clients64 runs fn from 64 goroutines, each with a session.
func clients64(b *testing.B, s *metadata.Server, ctx context.Context, fn func(k *benchClient)) {
	var n atomic.Uint32
	b.SetParallelism((64 + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		id := n.Add(1)
		nonce := make([]byte, 16)
		nonce[0], nonce[1] = byte(id), byte(id>>8)
		resp, err := s.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Nonce: nonce}}})
		if err != nil {
			b.Error(err)
			return
		}
		k := &benchClient{id: id, session: resp.GetSession().Session}
		for pb.Next() {
			fn(k)
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}

type benchClient struct {
	id      uint32
	session uint64
	number  uint64
}

func BenchmarkCreate(b *testing.B) {
	s, ctx := benchCluster(b)
	clients64(b, s, ctx, func(k *benchClient) {
		k.number++
		_, err := s.Do(ctx, &wire.MetaRequest{RoutingEpoch: 1, Session: k.session, Number: k.number, AckedBelow: k.number, Op: &wire.MetaRequest_Create{Create: &wire.Create{
			Parent: root, Name: fmt.Sprintf("%d-%d", k.id, k.number), Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644, Exclusive: true}}})
		if err != nil {
			b.Error(err)
		}
	})
}

func BenchmarkStat(b *testing.B) {
	s, ctx := benchCluster(b)
	clients64(b, s, ctx, func(k *benchClient) {
		if _, err := s.Do(ctx, &wire.MetaRequest{RoutingEpoch: 1, Session: k.session, Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: root}}}); err != nil {
			b.Error(err)
		}
	})
}
