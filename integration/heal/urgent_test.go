package heal_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport/wire"
)

// background adds up what movers got from all chunkservers but one, by the limit
// they passed.
func (w *world) background(but, bound string) (bytes float64) {
	w.t.Helper()
	for _, id := range []string{"n1", "n2", "n3", "n4", "n5"} {
		if id != but {
			bytes += counted(w.t, w.ChunkMetrics(id).BackgroundBytes.WithLabelValues(bound))
		}
	}
	return bytes
}

func counted(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	require.NoError(t, c.Write(&m))
	return m.GetCounter().GetValue()
}

// TestUrgentRepairsPassNoShare: while clients read, the repair of stripes without
// redundancy left passes no limit of its share, and the repair of others does.
func TestUrgentRepairsPassNoShare(t *testing.T) {
	for scheme, urgent := range map[moraine.Scheme]bool{{K: 2, M: 1}: true, {K: 2, M: 2}: false} {
		t.Run(scheme.String(), func(t *testing.T) {
			inWorld(t, incluster.Options{Chunkservers: 5, RepairGrace: 20 * time.Second}, func(w *world) {
				root := uint64(moraine.RootInode)
				require.NoError(t, w.admin.Policies().Set(w.ctx, moraine.InodeID(root), client.Policy{Scheme: scheme}))
				w.write(6)
				var reading sync.WaitGroup
				ctx, stop := context.WithCancel(w.ctx)
				defer reading.Wait()
				defer stop()
				reading.Go(func() { w.readOften(ctx) })
				w.Kill("n5")
				w.until("the host is declared dead", func() bool {
					return w.host("n5").Devices[0].State == wire.DeviceState_DEVICE_STATE_OUT
				})
				w.sound()
				without, shared := w.background("n5", "urgent"), w.background("n5", "clients")+w.background("n5", "alone")
				if urgent {
					require.Positive(t, without)
					require.Zero(t, shared)
				} else {
					require.Positive(t, shared)
					require.Zero(t, without)
				}
			})
		})
	}
}

// readOften reads a block of every file each second, until ctx ends.
func (w *world) readOften(ctx context.Context) {
	for ctx.Err() == nil {
		for name := range w.files {
			if r, err := w.admin.OpenFile(ctx, name); err == nil {
				_, _ = r.ReadAt(ctx, make([]byte, 4096), 0)
				_ = r.Close()
			}
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}
