package serve

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/transport"
	"golang.org/x/sync/errgroup"
)

// DialPatiently opens a session as soon as the metadata servers answer. A server that
// starts before them waits.
func DialPatiently(ctx context.Context, cfg client.Config, deps client.Deps) (*client.Client, error) {
	for {
		c, err := client.Dial(ctx, cfg, deps)
		if err == nil || ctx.Err() != nil {
			return c, err
		}
		switch moraine.KindOf(err) {
		case moraine.Unavailable, moraine.Timeout, moraine.NotLeader:
			deps.Log.Warn("the metadata servers do not answer; trying again", "err", err)
		default:
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// IgnoreEnd drops an error that only reports the end of ctx.
func IgnoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, moraine.Canceled)) {
		return nil
	}
	return err
}

// CheckDir refuses a path that exists and is not a directory.
func CheckDir(flag, dir string) error {
	if st, err := os.Stat(dir); err == nil && !st.IsDir() {
		return cli.UsageError("%s %s: this is a file: name a directory; the server makes a missing one", flag, dir)
	}
	return nil
}

// WhenReady is run after the server has its ports: a process that cannot have them must not
// touch a directory.
func WhenReady(server *transport.Server, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-server.Ready():
			return run(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

// RunAll runs the parts of a server until ctx ends or one of them fails, and
// returns when all have ended.
func RunAll(ctx context.Context, parts ...func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, run := range parts {
		g.Go(func() error { return run(ctx) })
	}
	return listenHint(g.Wait())
}
