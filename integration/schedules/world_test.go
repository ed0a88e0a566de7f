package schedules_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/netns"
	"github.com/morainefs/moraine/internal/slowdisk"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
)

// world is the environment of one schedule: a cluster of processes and a crew, each
// on a host of its own, on a network and below a directory that no other schedule
// uses.
type world struct {
	dir     string
	net     *netns.Net
	cluster *devcluster.Cluster
	crew    map[string]*member
	proxies map[string]*proxy
	slow    *slowdisk.Disk
	admin   *client.Client
	ends    []func() error // everything that was made, in order
}

const (
	// capacity is that of each device, and smallDisk the size of the one that is
	// filled: it has space for the capacity, an index and a ballast.
	capacity  = "256MiB"
	smallDisk = 448 << 20
)

// makeWorld makes one below dir. An error is netns.ErrCannot if namespaces are not
// permitted, errMount if mounts are not. On error it removes everything that it
// made.
func makeWorld(ctx context.Context, binary, dir string, seed uint64) (w *world, err error) {
	w = &world{dir: dir, crew: map[string]*member{}, proxies: map[string]*proxy{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
			w = nil
		}
	}()
	if w.net, err = netns.New(slices.Concat(metadataServers, chunkservers, clients, []string{bucket})...); err != nil {
		return w, err
	}
	w.ends = append(w.ends, w.net.Close)
	if err = w.mount(); err != nil {
		return w, err
	}
	if err = w.startProxies(); err != nil {
		return w, err
	}
	if err = w.startCluster(ctx, binary); err != nil {
		return w, err
	}
	if w.admin, err = w.dial(ctx); err != nil {
		return w, err
	}
	if err = w.makeSmallDir(ctx); err != nil {
		return w, err
	}
	return w, w.startCrew(seed)
}

// makeSmallDir makes the directory of the small files. Its policy requires coded
// stripes, so that packing them saves space.
func (w *world) makeSmallDir(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	a, err := w.admin.MkdirAll(ctx, smallDir, 0o755)
	if err != nil {
		return err
	}
	return w.admin.Policies().Set(ctx, a.Inode(), client.Policy{Scheme: moraine.Scheme{K: 2, M: 2}})
}

// errMount means that mounts are not possible here.
var errMount = errors.New("slow and full disks need root, FUSE and loop mounts")

func (w *world) clusterDir() string { return filepath.Join(w.dir, "cluster") }

// mount gives two chunkservers disks of their own.
func (w *world) mount() (err error) {
	at := filepath.Join(w.clusterDir(), slowed)
	if w.slow, err = slowdisk.Mount(at, filepath.Join(w.dir, "slow")); err != nil {
		return fmt.Errorf("%w: %w", errMount, err)
	}
	w.ends = append(w.ends, w.slow.Unmount)
	at = filepath.Join(w.clusterDir(), filled)
	if err := mountSmall(at, smallDisk); err != nil {
		return fmt.Errorf("%w: %w", errMount, err)
	}
	w.ends = append(w.ends, func() error { return unmount(at) })
	return nil
}

func (w *world) socket(name string) string { return filepath.Join(w.dir, name+".sock") }

func (w *world) startProxies() error {
	for _, name := range slices.Concat(metadataServers, chunkservers) {
		p, err := newProxy(w.net, name, w.net.IP(name)+":7420", w.socket(name))
		if err != nil {
			return err
		}
		w.proxies[name] = p
		w.ends = append(w.ends, p.Close)
	}
	return nil
}

func (w *world) startCluster(ctx context.Context, binary string) (err error) {
	w.cluster, err = devcluster.Start(ctx, devcluster.Config{
		Binary: binary, Dir: w.clusterDir(), Metadata: len(metadataServers), Chunkservers: len(chunkservers), Net: w.net, ObjectServer: true,
		Listen: func(name, address string) string {
			if w.proxies[name] == nil {
				return address // the bucket is reached without a proxy
			}
			return "unix:" + w.socket(name)
		},
		// Everything slow must happen within a schedule: sessions expire, hosts are
		// declared dead, dead chunks are deleted, lost ones are rebuilt, mostly
		// dead stripes are rewritten, and small files are packed.
		MetadataArgs: []string{"--session-timeout", "5s", "--grace", "2s", "--repair-grace", "4s", "--rewrite-every", "5s", "--rewrite-live", "50", "--backup-horizon", "-1s", "--pack-after", "3s"},
		ChunkserverArgs: []string{"--capacity", capacity, "--memory", "64MiB", "--report-interval", "10s", "--scrub-interval", "15s",
			"--repair-bandwidth", "64MiB"},
	})
	if err != nil {
		return err
	}
	w.ends = append(w.ends, w.cluster.Close)
	return nil
}

// dial opens a client of this process, which no fault targets.
func (w *world) dial(ctx context.Context) (*client.Client, error) {
	id, err := pki.LoadIdentity(pki.FilesIn(w.cluster.Certs(), "admin"))
	if err != nil {
		return nil, err
	}
	pool, err := transport.NewPool(transport.PoolConfig{Mode: transport.CRC}, transport.PoolDeps{Identity: id})
	if err != nil {
		return nil, err
	}
	w.ends = append(w.ends, pool.Close)
	cfg := client.Config{CacheEntries: -1}
	for _, n := range w.cluster.Nodes(devcluster.Metadata) {
		cfg.Metadata = append(cfg.Metadata, []string{n.Address})
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, cfg, client.Deps{Dialer: pool})
	if err == nil {
		w.ends = append(w.ends, func() error { _ = c.Close(); return nil }) // its session may be over
	}
	return c, err
}

func (w *world) startCrew(seed uint64) error {
	for _, name := range clients {
		m := &member{name: name, net: w.net, log: filepath.Join(w.dir, name+".log"),
			spec: settings{Certs: w.cluster.Certs(), Cached: name == cachedReader, Seed: seed}}
		for _, n := range w.cluster.Nodes(devcluster.Metadata) {
			m.spec.Metadata = append(m.spec.Metadata, n.Address)
		}
		if err := m.start(); err != nil {
			return err
		}
		w.crew[name] = m
		w.ends = append(w.ends, m.kill)
	}
	for _, m := range w.crew {
		if err := m.ready(); err != nil {
			return err
		}
	}
	return nil
}

// mend waits until every server is up again.
func (w *world) mend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	for _, n := range w.cluster.All() {
		if !n.Running() {
			return fmt.Errorf("%s does not run: %s", n.Name, n.Why())
		}
	}
	for _, m := range w.crew {
		if err := m.ready(); err != nil {
			return err
		}
	}
	for _, n := range w.cluster.Nodes(devcluster.Metadata) {
		if err := n.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Close removes everything but the directory.
func (w *world) Close() error {
	var errs []error
	for i := len(w.ends) - 1; i >= 0; i-- {
		errs = append(errs, w.ends[i]())
	}
	w.ends = nil
	return errors.Join(errs...)
}

// logs returns the ends of all logs, for people.
func (w *world) logs() (text string) {
	for _, n := range w.cluster.All() {
		text += fmt.Sprintf("%s:\n%s\n", n.Name, n.LogTail(15))
	}
	for _, m := range w.crew {
		data, err := os.ReadFile(m.log)
		if err == nil && len(data) > 0 {
			text += fmt.Sprintf("%s:\n%s\n", m.name, data[max(0, len(data)-2000):])
		}
	}
	return text
}
