package chunkserver

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// deviceTasks runs the tasks of the devices in use: writing behind, reports, scrubs,
// the health of disks, and settling.
type deviceTasks struct {
	cfg     *Config
	deps    *Deps
	meta    *metaState
	fleet   *atomic.Pointer[fleet]
	deleter *deleter
}

// tend runs the tasks of a device in use, until ctx ends or the device is dropped,
// and returns when all of them have ended. An error names the chunks acknowledged
// in memory that could not be written.
func (t *deviceTasks) tend(ctx context.Context, d *device) error {
	defer close(d.left)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var g errgroup.Group
	g.Go(func() error { return d.tier.Run(ctx) })
	for _, run := range []func(context.Context){
		(&reporter{cfg: t.cfg, deps: t.deps, meta: t.meta, fleet: t.fleet, deleter: t.deleter, d: d}).run,
		newScrubber(t, d, scrubLimit(t.cfg)).run,
		(&healthReader{deps: t.deps, d: d}).run,
		(&settler{deps: t.deps, d: d}).run,
	} {
		g.Go(func() error { run(ctx); return nil })
	}
	g.Go(func() error {
		select {
		case <-d.leave:
			cancel()
		case <-ctx.Done():
		}
		return nil
	})
	err := g.Wait()
	select {
	case <-d.leave: // nothing on it counts
		if err != nil {
			t.deps.Log.Warn("memory chunks not written to dropped device", "device", d.dir, "err", err)
		}
		return nil
	default:
		return err
	}
}
