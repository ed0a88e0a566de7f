package mountcmd

import (
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/morainefs/moraine/fuse/observe"
)

// openAccessLog opens the access log, where a flag names one, and reopens it on SIGHUP. Without one
// it returns nil.
func openAccessLog(file string, log *slog.Logger) (l *observe.AccessLog, end func(), err error) {
	if file == "" {
		return nil, func() {}, nil
	}
	if l, err = observe.OpenAccessLog(file, log); err != nil {
		return nil, nil, fmt.Errorf("--access-log: %w", err)
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	go func() {
		for range hangups {
			l.Reopen()
		}
	}()
	return l, func() {
		signal.Stop(hangups)
		close(hangups)
		l.Close()
	}, nil
}
