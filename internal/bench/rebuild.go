package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
	"golang.org/x/sys/unix"
)

const (
	// RebuildGrace is how long its metadata servers wait for a silent one.
	RebuildGrace = 5 * time.Second
	// calmFor is for how many times Env.Seconds the foreground runs before.
	calmFor = 4
	// rebuildPatience limits the wait for the rebuild.
	rebuildPatience = time.Hour
	// minRebuilt is the least part of the killed chunkserver's chunks and bytes
	// that must be rebuilt. Its records have headers, which do not count as
	// rebuilt.
	minRebuilt = 0.98
)

// RebuildHosts is how many chunkservers Rebuild needs: without one of them, enough
// are left for the chunks of a stripe.
func RebuildHosts(s moraine.Scheme) int { return s.Chunks() + 1 }

// Rebuild kills a chunkserver with e.Bytes of chunks for good. It measures how long
// these take to be redundant again, and how this affects a foreground.
func Rebuild(ctx context.Context, e *Env) ([]Line, error) {
	if e.Cluster == nil {
		return nil, errors.New("bench: rebuild kills a chunkserver, so it starts a cluster of its own: leave out --endpoint and --path")
	}
	b := &rebuild{e: e}
	if err := b.fits(); err != nil {
		return nil, err
	}
	e.Progress("the disk, before")
	w, r, err := b.disk(ctx)
	if err != nil {
		return nil, err
	}
	b.files = b.works()
	e.Progress("filling it")
	if err := b.makeDir(ctx, dataDir); err != nil {
		return nil, err
	}
	if _, _, err := e.write(ctx, b.files); err != nil {
		return nil, err
	}
	if err := b.choose(ctx); err != nil {
		return nil, err
	}
	var end func() error
	if b.asking, end, err = e.Connect(ctx); err != nil {
		return nil, err
	}
	if b.fore, err = startForeground(ctx, e, b.files); err != nil {
		return nil, errors.Join(err, end())
	}
	lines, err := b.run(ctx)
	if err = errors.Join(err, b.fore.end(), end()); err != nil {
		return nil, err
	}
	if err := e.verify(ctx, b.files); err != nil {
		return nil, fmt.Errorf("bench: after the rebuild: %w", err)
	}
	e.Progress("the disk, after")
	w1, r1, err := b.disk(ctx)
	if err != nil {
		return nil, err
	}
	// For each rebuilt byte one is written and K are read, on one disk here.
	limit := 1 / (1/max(w, w1) + float64(e.Scheme.K)/max(r, r1))
	lines[0] = lines[0].against(limit/gb, fmt.Sprintf("disk, %d read for 1 written", e.Scheme.K))
	return lines, nil
}

// works are files that give each chunkserver e.Bytes of chunks.
func (b *rebuild) works() []Work {
	e := b.e
	m := *e
	m.Bytes = int64(float64(e.Bytes) * float64(RebuildHosts(e.Scheme)) * float64(e.Scheme.K) / float64(e.Scheme.Chunks()))
	return m.works(OpWrite, dataDir)
}

// makeDir makes a directory whose files use the scheme.
func (b *rebuild) makeDir(ctx context.Context, dir string) (err error) {
	e, s := b.e, b.e.Scheme
	if err := e.mkdir(ctx, dir); err != nil {
		return err
	}
	c, end, err := e.Connect(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	a, err := c.Stat(ctx, dir)
	if err != nil {
		return err
	}
	return c.Policies().Set(ctx, a.Inode(), client.Policy{Scheme: s})
}

// disk measures the disk with a quarter of one host's bytes: all hosts are
// on it when it is measured again.
func (b *rebuild) disk(ctx context.Context) (write, read float64, err error) {
	return Disk(ctx, b.e.Dir, b.e.Devices, b.e.Bytes/4)
}

// fits fails if the disk has too little space. It needs space for all hosts,
// the rebuilt chunks beside the dead host's, the foreground, and the measurement of
// the disk.
func (b *rebuild) fits() error {
	e := b.e
	beside := int64(2<<30) + e.Bytes/4
	var st unix.Statfs_t
	if err := unix.Statfs(e.Dir, &st); err != nil {
		return err
	}
	hosts := int64(RebuildHosts(e.Scheme))
	if need, free := (hosts+1)*e.Bytes+beside, int64(st.Bavail)*st.Bsize; free < need {
		return fmt.Errorf("bench: %d chunkservers of %d bytes, and one of them once more, need %d bytes of disk, and %s has %d: name another --dir, give fewer --bytes, or a --scheme of fewer chunks", hosts, e.Bytes, need, e.Dir, free)
	}
	return nil
}

// rebuild is one run of Rebuild.
type rebuild struct {
	e      *Env
	files  []Work
	asking *client.Client // for observation
	fore   *foreground    // nil without one
	victim *devcluster.Node
	chunks float64 // that it holds
	bytes  float64
}

// choose determines what the victim holds: as much as planned.
func (b *rebuild) choose(ctx context.Context) error {
	b.victim = b.e.Cluster.Node("n3")
	for last := -1.0; ; {
		// Each heartbeat updates the metric; nothing is written now.
		if err := sleep(ctx, 2*time.Second); err != nil {
			return err
		}
		m, err := scrape(ctx, b.victim.Admin)
		if err != nil {
			return err
		}
		b.chunks, b.bytes = total(m["moraine_chunkserver_device_chunks"]), total(m["moraine_chunkserver_device_used_bytes"])
		if b.bytes == last {
			break
		}
		last = b.bytes
	}
	if want := float64(b.e.Bytes); b.bytes < 0.8*want {
		return fmt.Errorf("bench: the chunkserver holds %.0f bytes instead of %.0f", b.bytes, want)
	}
	return nil
}

// calm is the foreground without a failure.
func (b *rebuild) calm(ctx context.Context) (foregroundLap, error) {
	if b.fore == nil {
		return foregroundLap{}, nil
	}
	b.e.Progress("the foreground, before")
	b.fore.begin()
	err := sleep(ctx, time.Duration(calmFor*b.e.Seconds*float64(time.Second)))
	return b.fore.lap(), err
}

// run kills the victim, and waits until everything is redundant again.
func (b *rebuild) run(ctx context.Context) ([]Line, error) {
	e := b.e
	calm, err := b.calm(ctx)
	if err != nil {
		return nil, err
	}
	e.Progress("chunkserver killed")
	killed := time.Now()
	if err := b.victim.Kill(); err != nil {
		return nil, err
	}
	if err := b.until(ctx, isOut(b.victim.Name)); err != nil {
		return nil, err
	}
	silent := time.Since(killed)
	away := b.fore.lap()
	before, err := b.repaired(ctx)
	if err != nil {
		return nil, err
	}
	e.Progress("rebuilding")
	u, err := e.measure(ctx, func(ctx context.Context) error { return b.until(ctx, isSound) })
	if err != nil {
		return nil, err
	}
	took := time.Since(killed)
	during := b.fore.lap()
	after, err := b.repaired(ctx)
	if err != nil {
		return nil, err
	}
	done := after.since(before)
	if done.chunks < minRebuilt*b.chunks || done.bytes < minRebuilt*b.bytes {
		return nil, fmt.Errorf("bench: %.0f chunks and %.0f bytes were rebuilt, but the killed chunkserver held %.0f and %.0f", done.chunks, done.bytes, b.chunks, b.bytes)
	}
	lines := []Line{
		e.rate("rebuild", done.bytes, u, u.wrote),
		{Name: e.name("rebuild-bytes"), Value: done.bytes / gb, Unit: "GB"},
		{Name: e.name("rebuild-time"), Value: took.Seconds(), Unit: "s since the kill"},
		{Name: e.name("rebuild-silent"), Value: silent.Seconds(), Unit: "s of it until it was declared dead"},
	}
	for _, phase := range []struct {
		name string
		laps foregroundLap
	}{{"rebuild-silent", away}, {"rebuild", during}} {
		more, err := phase.laps.lines(e, phase.name, calm)
		if err != nil {
			return nil, err
		}
		lines = append(lines, more...)
	}
	return lines, nil
}

// until polls the leader until so is true of its answer.
func (b *rebuild) until(ctx context.Context, so func(*wire.ClusterReply) bool) error {
	ctx, cancel := context.WithTimeout(ctx, rebuildPatience)
	defer cancel()
	for {
		resp, err := rawclient.Of(b.asking).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
		if err != nil {
			return err
		}
		c := resp.GetCluster()
		if c.GetLostStripes() > 0 {
			return fmt.Errorf("bench: %d stripes are lost", c.GetLostStripes())
		}
		if so(c) {
			return nil
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("bench: %d stripes wait for repair, %d are being repaired: %w", c.GetRepairQueued(), c.GetRepairRunning(), err)
		}
	}
}

// isOut returns a condition for until: no device of the host is in.
func isOut(host string) func(*wire.ClusterReply) bool {
	return func(c *wire.ClusterReply) bool {
		for _, h := range c.GetTopology().GetHosts() {
			if h.GetId() != host {
				continue
			}
			for _, d := range h.GetDevices() {
				if d.GetState() == wire.DeviceState_DEVICE_STATE_IN {
					return false
				}
			}
			return true
		}
		return true
	}
}

// isSound reports whether nothing waits for repair and no check is pending.
func isSound(c *wire.ClusterReply) bool {
	return c.GetRepairQueued() == 0 && c.GetRepairRunning() == 0 && c.GetHealing().GetScanning() == 0
}

// repairedCounts is how much the movers have rebuilt and committed.
type repairedCounts struct{ chunks, bytes float64 }

func (r repairedCounts) since(b repairedCounts) repairedCounts {
	return repairedCounts{r.chunks - b.chunks, r.bytes - b.bytes}
}

func (b *rebuild) repaired(ctx context.Context) (r repairedCounts, err error) {
	for _, n := range b.e.Cluster.Nodes(devcluster.Chunkserver) {
		if n == b.victim {
			continue // it is meant to be dead
		}
		families, err := scrape(ctx, n.Admin)
		if err != nil {
			return r, fmt.Errorf("bench: the metrics of %s: %w", n.Name, err)
		}
		r.chunks += total(families["moraine_mover_repaired_chunks_total"])
		r.bytes += total(families["moraine_mover_repaired_bytes_total"])
	}
	return r, nil
}
