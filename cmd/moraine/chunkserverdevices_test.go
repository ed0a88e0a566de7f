package main

import (
	"context"
	"log/slog"
	"os"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/chunkserver"
)

// lateServer is a chunkserver that is not ready yet.
type lateServer struct {
	ready chan struct{}
	set   [][]chunkserver.DeviceConfig
}

func (s *lateServer) Ready() <-chan struct{} { return s.ready }

func (s *lateServer) SetDevices(_ context.Context, want []chunkserver.DeviceConfig) error {
	s.set = append(s.set, want)
	return nil
}

// TestHangupBeforeRegistrationIsNotForgotten: the settings file is changed, and SIGHUP sent,
// while the chunkserver still waits to be registered. It takes the devices up afterwards.
func TestHangupBeforeRegistrationIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &lateServer{ready: make(chan struct{})}
		signals := make(chan os.Signal, 1)
		want := []chunkserver.DeviceConfig{{Dir: "/a"}, {Dir: "/b"}}
		ended := make(chan error, 1)
		go func() {
			ended <- followDevices(ctx, signals, s, func() ([]chunkserver.DeviceConfig, error) { return want, nil }, slog.New(slog.DiscardHandler))
		}()
		signals <- syscall.SIGHUP
		synctest.Wait()
		require.Empty(t, s.set)
		close(s.ready)
		synctest.Wait()
		require.Equal(t, [][]chunkserver.DeviceConfig{want}, s.set)
		cancel()
		require.NoError(t, <-ended)
	})
}
