package stripeio

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// atOnce is a chunkserver that answers without a network.
type atOnce struct {
	transport.Chunks
	chunk []byte
	sum   uint32
}

func (a atOnce) Get(_ context.Context, req *wire.GetChunk, dst []byte, each func([]byte)) (*wire.GetChunkReply, int, error) {
	n := copy(dst, a.chunk[req.Offset:])
	each(dst)
	return &wire.GetChunkReply{Version: 1, Crc: a.sum, PayloadCrc: crc.Sum(dst), ChunkLength: uint64(len(a.chunk))}, n, nil
}

// extentsOfAtOnce returns the extents of a file of one stripe, whose chunks are all equal.
func extentsOfAtOnce(scheme moraine.Scheme) *ExtentMap {
	log, counts := slog.New(slog.DiscardHandler), metrics.NewMetrics(nil)
	meta := session.New(session.Config{Metadata: [][]string{{"none"}}, AttemptTimeout: 5 * time.Second, Patience: time.Minute},
		session.Deps{Clock: clock.System{}, Log: log, Metrics: counts})
	e := NewEngine(Config{MemoryBytes: 256 << 20, ChunkBytes: moraine.DefaultChunkSize, Patience: time.Minute, GetTimeout: 10 * time.Second,
		HedgeFloor: 50 * time.Millisecond}, meta, Deps{Clock: clock.System{}, Log: log, Metrics: counts})
	chunk := make([]byte, 1<<20)
	server := atOnce{chunk: chunk, sum: crc.Sum(chunk)}
	top := &topology{devices: map[moraine.DeviceID]device{}}
	s := &Record{Stripe: moraine.Stripe{ID: 1, Scheme: scheme, Version: 1, Length: int64(scheme.K) << 20}}
	for i := range scheme.Chunks() {
		d := moraine.DeviceID(i + 1)
		top.devices[d] = device{host: fmt.Sprint(d), alive: true, chunks: server}
		s.Chunks = append(s.Chunks, moraine.ChunkState{Device: d, CRC: server.sum, Level: moraine.NVMe})
	}
	e.Topology.now.Store(top)
	m := NewExtentMap(e, 1, 1)
	m.pages = []page{{from: 0, to: s.Length, extents: []Located{{Record: s, Extent: moraine.Extent{Length: s.Length, Stripe: 1}}}}}
	return m
}

// BenchmarkSmallRead measures the client's cost of a 4 KiB read, without the network.
func BenchmarkSmallRead(b *testing.B) {
	for _, scheme := range []moraine.Scheme{moraine.Copies(1), moraine.Copies(3), {K: 4, M: 2}} {
		b.Run(scheme.String(), func(b *testing.B) {
			m := extentsOfAtOnce(scheme)
			defer m.c.Pool.Close()
			p := make([]byte, 4096)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				off := int64(i%256) * 4096
				found, err := m.Find(context.Background(), off, off+4096)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := m.c.ReadLocated(context.Background(), found, p, off, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
