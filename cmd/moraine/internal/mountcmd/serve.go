package mountcmd

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/fuse"
)

// serveFunc mounts and serves until the mount ends. It calls ready when the mount can be used.
type serveFunc func(ctx context.Context, env *cli.Env, o MountOptions, loc cli.Location, dir string, ready func()) error

// serveMount is a serveFunc that does it all in this process.
func serveMount(ctx context.Context, env *cli.Env, o MountOptions, loc cli.Location, dir string, ready func()) (err error) {
	record, err := openMountRecord(dir, loc.String())
	if err != nil {
		return err
	}
	defer func() { record.end(err) }() // the last of all
	return serveDevice(ctx, env, o, loc, dir, nil, func(*fuse.Mount) { ready() })
}

// serveDevice serves a mount until it ends. A nil device: it mounts. It calls ready when the mount
// can be used.
func serveDevice(ctx context.Context, env *cli.Env, o MountOptions, loc cli.Location, dir string, device *fuse.Device, ready func(*fuse.Mount)) (err error) {
	log, err := env.Log()
	if err != nil {
		return err
	}
	stopProfile, err := startProfile(o.profile)
	if err != nil {
		return err
	}
	defer stopProfile()
	debug.SetMemoryLimit(int64(o.memory) + int64(o.memory)/2) // the collector works harder near the bound
	cfg, err := o.clientConfig()
	if err != nil {
		return err
	}
	mountCfg, err := o.fuseConfig(loc, dir)
	if err != nil {
		return err
	}
	if device != nil {
		cfg.Resume = device.Resume()
	}
	c, err := dialForMount(ctx, env, o, loc, cfg, log)
	if err != nil {
		return err
	}
	// Committed data is safe, whatever happens to the session.
	defer func() { err = errors.Join(err, c.close()) }()
	root, err := c.Stat(ctx, loc.Path)
	if err != nil {
		return err
	}
	if !root.IsDir() {
		return &moraine.Error{Op: "mount", Ref: loc.String(), Kind: moraine.NotDirectory}
	}
	mountCfg.Root = root.Inode()
	return c.serve(ctx, o, mountCfg, device, log, ready)
}

// clientConfig returns the settings of the mount's client.
func (o *MountOptions) clientConfig() (client.Config, error) {
	cfg, err := cli.SchemeConfig(o.scheme)
	if err != nil {
		return cfg, err
	}
	cfg.MemoryBytes, cfg.Patience, cfg.CacheEntries = int64(o.memory)/4*3, o.patience, cli.CacheEntries(o.cache)
	cfg.Delegation = o.delegation
	if err := o.bandwidth.apply(&cfg); err != nil {
		return cfg, err
	}
	return cfg, o.node.apply(&cfg)
}

// fuseConfig returns the settings of the mount, but for its root.
func (o *MountOptions) fuseConfig(loc cli.Location, dir string) (fuse.Config, error) {
	total := int64(o.memory)
	cfg := fuse.Config{Dir: dir, Name: loc.String(), AllowOther: o.allowOther, ReadOnly: o.readOnly, NoXattrs: o.noXattrs, NoAtime: o.noAtime, Level: o.level,
		RequestBytes: total / 8, ReadBytes: total / 8, Patience: o.patience, CallPatience: o.patience}
	cfg.Prefetch = fuse.Prefetch{Names: o.prefetch, CacheOnly: o.node.dir != ""}
	return cfg, o.owners.apply(&cfg)
}

// serve serves a directory of the cluster until the mount ends.
func (c *mountClient) serve(ctx context.Context, o MountOptions, cfg fuse.Config, device *fuse.Device, log *slog.Logger, ready func(*fuse.Mount)) error {
	access, endLog, err := openAccessLog(o.accessLog, log)
	if err != nil {
		return err
	}
	defer endLog()
	m, err := fuse.New(cfg, fuse.Deps{Client: c.Client, Log: log, Metrics: c.metrics, AccessLog: access, Device: device})
	if err != nil {
		return err
	}
	stop, err := startControl(&control{source: cfg.Name, dir: cfg.Dir, mount: m, client: c})
	if err != nil { // such as a path that is too long for a socket
		log.Warn("moraine stats and moraine profile do not work on this mount: its control socket could not be made", "err", err)
		stop = func() {}
	}
	defer stop()
	return c.run(ctx, func(ctx context.Context) error {
		return m.Run(ctx, func() {
			log.Info("mounted", "source", cfg.Name, "dir", cfg.Dir, "pid", os.Getpid())
			ready(m)
		})
	})
}
