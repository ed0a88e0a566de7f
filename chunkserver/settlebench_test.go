package chunkserver

import (
	"context"
	"crypto/rand"
	"fmt"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/tiers/mem"
	"github.com/morainefs/moraine/transport/wire"
)

// listedMeta lists chunks as the metadata service does, without its cost.
type listedMeta struct{ chunks []*wire.SettledChunk }

func (m *listedMeta) Do(_ context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	op := req.GetListMemory()
	from := op.GetAfter() // the stripes have the numbers 1, 2, ...
	page := m.chunks[from:min(from+1024, uint64(len(m.chunks)))]
	reply := &wire.MemoryReply{Chunks: page, At: from + uint64(len(page)), More: from+uint64(len(page)) < uint64(len(m.chunks))}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Memory{Memory: reply}}, nil
}

// BenchmarkSettlePass is a pass of a device that defers many chunks, of 100 steps, when nothing has changed.
func BenchmarkSettlePass(b *testing.B) {
	for _, rows := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			fs, cluster := vfs.NewMem(1), moraine.UUID{1}
			if _, err := disk.Format(fs, "/d", cluster, rand.Reader); err != nil {
				b.Fatal(err)
			}
			m, err := mem.Open(mem.Config{Arena: mem.ArenaConfig{Bytes: 256 << 20}, DirtyBytes: 128 << 20}, mem.Deps{})
			if err != nil {
				b.Fatal(err)
			}
			medium, err := disk.Open(disk.Config{Dir: "/d", Cluster: cluster, BallastBytes: -1}, disk.Deps{FS: fs, Pool: m.Arena()})
			if err != nil {
				b.Fatal(err)
			}
			tier, meta := m.Over(medium, cluster), &listedMeta{}
			tier.Admit()
			for n := range rows {
				buf, err := m.Arena().Get(b.Context(), 100)
				if err != nil {
					b.Fatal(err)
				}
				sums := crc.Blocks(nil, buf.Bytes())
				h := tiers.Header{ID: moraine.ChunkID{Stripe: moraine.StripeID(n + 1)}, Version: 1, Cluster: cluster, Length: 100, CRC: crc.CombineBlocks(sums, 100)}
				if level, err := tier.TakeDeferred(b.Context(), h, buf, sums, uint64(1+n%100)); err != nil || level != moraine.Memory {
					b.Fatal(level, err)
				}
				meta.chunks = append(meta.chunks, &wire.SettledChunk{Stripe: uint64(n + 1)})
			}
			st := &settler{deps: &Deps{Meta: meta, Clock: clock.System{}}, d: &device{tier: tier}}
			if err := st.settle(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := st.settle(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
