package bench

import (
	"context"
	"errors"
	"path"
	"time"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/llama"
)

// sizeAtOnce is how many ranks CkptSize simulates at once while it prepares the step.
const sizeAtOnce = 8

// CkptSize measures a step of very many slices: e.Ranks ranks, each with a row of e.Tensors tensors.
// All ranks but the last have sealed before the clock starts. It measures the time from the seal of
// the last until the commit, what the step takes of the memory of the metadata servers, and how much
// of the index one rank reads to restore its rows.
func CkptSize(ctx context.Context, e *Env) (lines []Line, err error) {
	if e.Cluster == nil {
		return nil, errors.New("bench: ckpt-size needs a cluster of its own: leave out --path and --endpoint")
	}
	c, end, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	w := llama.Wide{Path: path.Join(runsDir, "wide"), World: e.Ranks, Tensors: e.Tensors}
	memory := e.servers().metadataResident()
	e.Progress("%d ranks save %d tensors each", w.World, w.Tensors)
	if _, err := w.Save(ctx, c, 1, 0, w.World-1, sizeAtOnce); err != nil {
		return nil, err
	}
	e.Progress("the last rank, and the commit")
	var commit time.Duration
	u, err := e.measure(ctx, func(ctx context.Context) error {
		sealed, err := w.Save(ctx, c, 1, w.World-1, w.World, 1)
		if err == nil {
			err = w.Wait(ctx, c, 1)
		}
		commit = time.Since(sealed)
		return err
	})
	if err != nil {
		return nil, err
	}
	e.Progress("a restore of one rank")
	began := time.Now()
	read, size, err := w.Restore(ctx, c, 1, w.World/2, w.World)
	if err != nil {
		return nil, err
	}
	slices := float64(w.World) * float64(w.Tensors)
	return []Line{
		{Name: e.name("ckpt-size-slices"), Value: slices, Unit: "slices"},
		{Name: e.name("ckpt-size-commit"), Value: commit.Seconds(), Unit: "s", DeviceBytes: u.wrote, Syncs: u.syncs},
		{Name: e.name("ckpt-size-commit-cpu"), Value: u.cpu * 1e6 / slices, Unit: "CPU us/slice"},
		Line{Name: e.name("ckpt-size-metadata"), Value: e.servers().metadataResident() / 1e6, Unit: "MB"}.against(memory/1e6, "before the step"),
		Line{Name: e.name("ckpt-size-mover"), Value: u.rssEnd / 1e6, Unit: "MB"}.against(u.rss/1e6, "before the commit"),
		{Name: e.name("ckpt-size-index"), Value: float64(size) / 1e6, Unit: "MB"},
		Line{Name: e.name("ckpt-size-plan"), Value: float64(read) / 1e6, Unit: "MB read"}.against(float64(size)/1e6, "index"),
		{Name: e.name("ckpt-size-restore"), Value: time.Since(began).Seconds(), Unit: "s"},
	}, nil
}

// metadataResident returns the memory of the largest metadata server.
func (s servers) metadataResident() (most float64) {
	for _, n := range s.Nodes(devcluster.Metadata) {
		if pid := n.Pid(); pid != 0 {
			most = max(most, residentBytes(pid))
		}
	}
	return most
}
