package chunkserver_test

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/transport/wire"
)

// TestADiskThatHangsDelaysNobody: while one disk does not report its health, the
// server serves, reports the health of the other devices, and ends.
func TestADiskThatHangsDelaysNobody(t *testing.T) {
	hung, release := make(chan struct{}), make(chan struct{})
	var askers atomic.Int32
	left := make(chan struct{})
	meta := newFakeMeta()
	h := startDeps(t, meta, config("/a", "/b"), chunkserver.Deps{Meta: meta, FS: vfs.NewMem(1), DiskHealth: func(dir string) *wire.DiskHealth {
		if dir == "/b" {
			return &wire.DiskHealth{Model: "of b"}
		}
		if askers.Add(1) == 1 {
			close(hung)
		}
		<-release
		close(left)
		return nil
	}})
	<-hung
	chunk := chunk(1, 1000)
	_, err := chunk.put(t, h)
	require.NoError(t, err)
	chunk.check(t, h)
	h.waitFor(t, func() bool {
		return slices.ContainsFunc(meta.beats, func(b *wire.Heartbeat) bool {
			return slices.ContainsFunc(b.Devices, func(d *wire.Device) bool { return d.Health.GetModel() == "of b" })
		})
	})
	require.NoError(t, h.stop())
	require.EqualValues(t, 1, askers.Load(), "one at a time")
	close(release)
	<-left
}
