package chunkserver_test

import (
	"context"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/transport/wire"
)

// fillStripes puts three chunks of each of n stripes on device 1.
func fillStripes(t *testing.T, h *host, n uint64) {
	t.Helper()
	var group sync.WaitGroup
	for g := range uint64(4) {
		group.Go(func() {
			for i := g; i < n; i += 4 {
				for index := range uint32(3) {
					c := chunk(i+1, 10)
					c.req.Index = index
					if _, err := h.PutChunk(t.Context(), c.req, &payload{data: c.data}); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	group.Wait()
}

// A slice ends between two stripes, never within one. A pass whose slice is refused
// restarts.
func TestALongReportIsCutBetweenStripes(t *testing.T) {
	const stripes = chunkserver.ReportSlice/3 + 100 // a slice would end within a stripe
	meta := newFakeMeta()
	full := false
	fails := 2
	meta.fault = func(req *wire.MetaRequest, done bool) error {
		r := req.GetReportChunks()
		if r == nil || done {
			return nil
		}
		if full && r.From != 0 && fails > 0 {
			fails--
			meta.reports[r.Device] = nil // of the pass that ends here
			return &moraine.Error{Kind: moraine.NotLeader}
		}
		return nil
	}
	h := start(t, vfs.NewMem(1), meta, config("/a"))
	fillStripes(t, h, stripes)
	meta.set(func() {
		full = true
		meta.passes = map[uint32][][]*wire.ReportChunks{}
	})
	var pass []*wire.ReportChunks
	h.waitFor(t, func() bool {
		for _, p := range meta.passes[1] {
			if len(p) == 2 && fails == 0 {
				pass = p
			}
		}
		return pass != nil
	})
	checkPass(t, pass)
	require.Len(t, pass[0].Chunks, chunkserver.ReportSlice/3*3)
	seen := map[[2]uint64]bool{}
	for _, r := range pass {
		for _, c := range r.Chunks {
			seen[[2]uint64{c.Stripe, uint64(c.Index)}] = true
		}
	}
	require.Len(t, seen, 3*stripes)
}

// After a pass there is a pause for each of its chunks, at most the interval.
func TestPaceOfReports(t *testing.T) {
	for _, row := range []struct {
		interval time.Duration
		chunks   uint64
		want     time.Duration
	}{
		{time.Hour, 0, time.Minute},
		{time.Hour, 6000, 2 * time.Minute},
		{time.Hour, 353_999, 3599990 * time.Millisecond},
		{time.Hour, 354_000, time.Hour},
		{time.Hour, math.MaxUint64, time.Hour},
		{time.Second, 0, time.Second},
	} {
		require.Equal(t, row.want, chunkserver.Pace(row.interval, row.chunks), row)
	}
}

// No pass begins before a heartbeat was answered: the metadata service judges a
// pass by the state under which it began.
func TestNoReportWithoutAState(t *testing.T) {
	meta := newFakeMeta()
	silent := true
	beats, reports := 0, 0
	meta.fault = func(req *wire.MetaRequest, done bool) error {
		switch {
		case done:
		case req.GetHeartbeat() != nil && silent:
			beats++
			return &moraine.Error{Kind: moraine.Unavailable}
		case req.GetReportChunks() != nil:
			reports++
		}
		return nil
	}
	h := start(t, vfs.NewMem(1), meta, config("/a"))
	h.waitFor(t, func() bool { return beats >= 20 })
	meta.set(func() {
		require.Zero(t, reports)
		silent = false
	})
	h.waitFor(t, func() bool { return reports > 0 })
}

// A put while the server stops is either refused, or its chunk is there at the next
// boot.
func TestStoppedUnderLoad(t *testing.T) {
	mem, meta := vfs.NewMem(1), newFakeMeta()
	var acknowledged []testChunk
	for boot := range 8 {
		cfg := config("/a", "/b")
		cfg.HeartbeatInterval = time.Millisecond
		h := start(t, mem, meta, cfg)
		meta.set(func() {
			gone := chunk(uint64(boot), 1)
			meta.deaths[1] = append(meta.deaths[1], &wire.Deletion{Device: 1, Stripe: gone.req.Stripe, Index: 7, Below: 9})
		})
		under := make(chan struct{})
		put := make(chan []testChunk)
		go func() {
			var all []testChunk
			for n := range 10_000 {
				c := chunk(uint64(10_000*(boot+1)+n), 5000)
				c.req.Device = uint32(1 + n%2)
				if _, err := h.PutChunk(t.Context(), c.req, &payload{data: c.data}); err != nil {
					break
				}
				if all = append(all, c); n == 2*boot {
					close(under)
				}
			}
			put <- all
		}()
		<-under
		require.NoError(t, h.stop())
		acknowledged = append(acknowledged, <-put...)
	}
	h := start(t, mem, meta, config("/a", "/b"))
	for _, c := range acknowledged {
		c.check(t, h)
	}
}

// Stopping a server that waits for the metadata service is no failure.
func TestStoppedBeforeItServes(t *testing.T) {
	for name, away := range map[string]func(*wire.MetaRequest) bool{
		"cluster":      func(r *wire.MetaRequest) bool { return r.GetGetCluster() != nil },
		"registration": func(r *wire.MetaRequest) bool { return r.GetRegisterHost() != nil },
	} {
		t.Run(name, func(t *testing.T) {
			meta := newFakeMeta()
			tries := make(chan struct{}, 100)
			meta.fault = func(req *wire.MetaRequest, _ bool) error {
				if away(req) {
					tries <- struct{}{}
					return &moraine.Error{Kind: moraine.Unavailable}
				}
				return nil
			}
			fsys := vfs.NewMem(1)
			format(t, fsys, "/a")
			s, err := chunkserver.New(config("/a"), chunkserver.Deps{Meta: meta, FS: fsys})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.Run(ctx) }()
			<-tries
			<-tries
			cancel()
			require.NoError(t, <-ended)
		})
	}
}
