package client

import (
	"context"
	"fmt"
	"testing"

	"github.com/morainefs/moraine"
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

// readerOfAtOnce returns a reader of a file of one stripe, whose chunks are all alike.
func readerOfAtOnce(scheme moraine.Scheme) *Reader {
	cfg, deps := Config{Metadata: [][]string{{"none"}}}, Deps{}
	cfg.setDefaults()
	deps.setDefaults()
	c := newClient(cfg, deps)
	chunk := make([]byte, 1<<20)
	server := atOnce{chunk: chunk, sum: crc.Sum(chunk)}
	top := &topology{devices: map[moraine.DeviceID]device{}}
	s := &stripeRecord{Stripe: moraine.Stripe{ID: 1, Scheme: scheme, Version: 1, Length: int64(scheme.K) << 20}}
	for i := range scheme.Chunks() {
		d := moraine.DeviceID(i + 1)
		top.devices[d] = device{host: fmt.Sprint(d), alive: true, chunks: server}
		s.Chunks = append(s.Chunks, moraine.ChunkState{Device: d, CRC: server.sum, Level: moraine.NVMe})
	}
	c.topology.now.Store(top)
	r := c.newReader("f", &wire.Attr{Inode: 1, Size: uint64(s.Length)}, newExtentMap(c, 1, 1))
	r.extents.pages = []page{{from: 0, to: s.Length, extents: []located{{stripe: s, Extent: moraine.Extent{Length: s.Length, Stripe: 1}}}}}
	return r
}

// BenchmarkSmallRead is what a read of 4 KiB costs the client, without the network.
func BenchmarkSmallRead(b *testing.B) {
	for _, scheme := range []moraine.Scheme{moraine.Copies(1), moraine.Copies(3), {K: 4, M: 2}} {
		b.Run(scheme.String(), func(b *testing.B) {
			r := readerOfAtOnce(scheme)
			defer r.c.pool.Close()
			p := make([]byte, 4096)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := r.ReadRange(context.Background(), p, int64(i%256)*4096); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
