package servercmd

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
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

// TestHangupBeforeRegistrationIsNotForgotten: the settings file changes and SIGHUP arrives
// while the chunkserver still waits for its registration. It serves the new devices
// afterwards.
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

// TestDevicesAreReadAgain: on SIGHUP the chunkserver uses the current settings file, unless
// the command line or the environment names the devices.
func TestDevicesAreReadAgain(t *testing.T) {
	t.Setenv("MORAINE_CHUNKSERVER_DEVICE", "") // of the user's shell
	dir := t.TempDir()
	file := filepath.Join(dir, "moraine.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o644)) }
	read := func(args ...string) ([]chunkserver.DeviceConfig, error) {
		env := &cli.Env{Out: os.Stdout, Err: os.Stderr, Args: append([]string{"chunkserver", "--config", file}, args...)}
		root := &cobra.Command{Use: "moraine"}
		root.PersistentFlags().String("config", "", "settings file")
		root.AddCommand(newChunkserverCommand(env))
		cmd, rest, err := root.Find(env.Args)
		require.NoError(t, err)
		require.NoError(t, cmd.ParseFlags(rest))
		return reloadDevices(env, cmd, 1<<30)
	}
	dirs := func(list []chunkserver.DeviceConfig) (out []string) {
		for _, d := range list {
			require.EqualValues(t, 1<<30, d.CapacityBytes)
			out = append(out, d.Dir)
		}
		return out
	}
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write("chunkserver:\n  device: [" + a + ", " + b + "]\n  memory: 1GiB\n")
	list, err := read()
	require.NoError(t, err)
	require.Equal(t, []string{a, b}, dirs(list))
	write("chunkserver:\n  device: " + b + "\n")
	list, err = read()
	require.NoError(t, err)
	require.Equal(t, []string{b}, dirs(list))

	write("chunkserver:\n  devices: [" + a + "]\n")
	_, err = read()
	require.ErrorContains(t, err, "unknown key", "a misspelt setting is not silent")
	write("chunkserver: [\n")
	_, err = read()
	require.Error(t, err)
	require.NoError(t, os.Remove(file))
	_, err = read()
	require.ErrorContains(t, err, file)

	write("chunkserver:\n  device: " + b + "\n")
	for _, args := range [][]string{{"--device", a}, {"--device=" + a}} {
		_, err = read(args...)
		require.ErrorContains(t, err, "command line")
	}
	t.Setenv("MORAINE_CHUNKSERVER_DEVICE", a)
	_, err = read()
	require.ErrorContains(t, err, "MORAINE_CHUNKSERVER_DEVICE")
}
