package chunkserver

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport/wire"
)

// TestADiskThatDoesNotAnswerIsNamed: the server logs the disk once, waits for it,
// and reads it again.
func TestADiskThatDoesNotAnswerIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		release, asked := make(chan struct{}), 0
		d := &device{dir: "/a"}
		hr := &healthReader{d: d, deps: &Deps{Clock: clock.System{}, Log: slog.New(slog.NewTextHandler(&log, nil)), DiskHealth: func(string) *wire.DiskHealth {
			asked++
			<-release
			return &wire.DiskHealth{Model: "slow"}
		}}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { hr.run(ctx); close(ended) }()
		time.Sleep(100 * healthEvery)
		synctest.Wait()
		require.Equal(t, 1, strings.Count(log.String(), "read delayed"))
		require.Equal(t, 1, asked)
		require.Nil(t, d.health.Load())
		close(release)
		time.Sleep(healthEvery + 1)
		synctest.Wait()
		require.Equal(t, 2, asked)
		require.Equal(t, "slow", d.health.Load().Model)
		cancel()
		<-ended
	})
}
