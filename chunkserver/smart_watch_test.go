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

// TestWhatIsKnownOfASleepingDisk stands; that another one fails is told.
func TestWhatIsKnownOfASleepingDisk(t *testing.T) {
	s, d := &Server{deps: Deps{Log: slog.New(slog.DiscardHandler)}}, &device{}
	well, fails := &wire.DiskHealth{Model: "well"}, &wire.DiskHealth{Failing: true}
	for _, step := range []struct {
		said  *wire.DiskHealth
		whole bool
		known *wire.DiskHealth
	}{
		{nil, false, nil}, {well, false, well}, {nil, false, well}, {&wire.DiskHealth{}, false, well},
		{fails, false, fails}, {well, false, fails}, {well, true, well}, {nil, true, nil},
	} {
		s.keepHealth(d, step.said, step.whole)
		require.Same(t, step.known, d.health.Load())
	}
}

// TestADiskThatDoesNotAnswerIsNamed once, waited for, and asked again.
func TestADiskThatDoesNotAnswerIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		release, asked := make(chan struct{}), 0
		s := &Server{deps: Deps{Clock: clock.System{}, Log: slog.New(slog.NewTextHandler(&log, nil)), DiskHealth: func(string) (*wire.DiskHealth, bool) {
			asked++
			<-release
			return &wire.DiskHealth{Model: "slow"}, true
		}}}
		d := &device{dir: "/a"}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { s.watchHealth(ctx, d); close(ended) }()
		time.Sleep(100 * smartEvery)
		synctest.Wait()
		require.Equal(t, 1, strings.Count(log.String(), "does not answer"))
		require.Equal(t, 1, asked)
		require.Nil(t, d.health.Load())
		close(release)
		time.Sleep(smartEvery + 1)
		synctest.Wait()
		require.Equal(t, 2, asked)
		require.Equal(t, "slow", d.health.Load().Model)
		cancel()
		<-ended
	})
}
