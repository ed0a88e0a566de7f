package servercmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/serve"
	"github.com/morainefs/moraine/cmd/moraine/internal/settings"
	"github.com/spf13/cobra"
)

// A running chunkserver reads the devices from its settings file again on SIGHUP. The next
// start reads the same file, so a change stays. Only the operator of the host can send a
// signal, so the server needs no port that it would have to protect.

// reloadDevices reads the devices from the settings file, as a start would. It fails where
// the command line or the environment names them: those cannot change while the process
// runs.
func reloadDevices(env *cli.Env, cmd *cobra.Command, capacity uint64) ([]chunkserver.DeviceConfig, error) {
	f := cmd.Flags().Lookup("device")
	for _, arg := range env.Args {
		if arg == "--device" || strings.HasPrefix(arg, "--device=") {
			return nil, errors.New("the command line names the devices: to change them while the " +
				"server runs, name them in the settings file instead, and restart it once")
		}
	}
	if name := settings.EnvName(cmd, f); os.Getenv(name) != "" {
		return nil, fmt.Errorf("%s names the devices: to change them while the server runs, name them in the settings file instead, and restart it once", name)
	}
	file, err := settings.Read(cmd)
	if err != nil {
		return nil, err
	}
	if err := file.CheckKeys(cmd.Root()); err != nil {
		return nil, err
	}
	v, _ := file.Lookup(settings.FileKey(cmd, f))
	list, ok := v.([]any)
	if !ok && v != nil {
		list = []any{v}
	}
	var out []chunkserver.DeviceConfig
	for _, e := range list {
		dir := fmt.Sprint(e)
		if err := serve.CheckDir("device", dir); err != nil {
			return nil, err
		}
		out = append(out, chunkserver.DeviceConfig{Dir: dir, CapacityBytes: capacity})
	}
	return out, nil
}

// hangups receives the SIGHUPs from now on. SIGHUP ends a process that has not registered
// for it, so the server calls this first.
func hangups() (signals chan os.Signal, stop func()) {
	signals = make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	return signals, func() { signal.Stop(signals) }
}

// devicesServer is a chunkserver whose devices can be changed once it is ready.
type devicesServer interface {
	Ready() <-chan struct{}
	SetDevices(ctx context.Context, want []chunkserver.DeviceConfig) error
}

// followDevices makes a chunkserver serve the devices of the settings file each time that
// the process gets SIGHUP, until ctx ends. It handles a SIGHUP from before the server was
// ready once it is ready: the server may have read the file before the change.
func followDevices(ctx context.Context, signals <-chan os.Signal, service devicesServer, reload func() ([]chunkserver.DeviceConfig, error), log *slog.Logger) error {
	select {
	case <-ctx.Done():
		return nil
	case <-service.Ready():
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signals:
		}
		devices, err := reload()
		if err == nil {
			err = service.SetDevices(ctx, devices)
		}
		if err != nil && ctx.Err() == nil {
			for _, line := range cli.ErrorLines(err) {
				log.Error("SIGHUP: some devices differ from the settings file", "err", line)
			}
			continue
		}
		log.Info("SIGHUP: the devices match the settings file", "devices", len(devices))
	}
}
