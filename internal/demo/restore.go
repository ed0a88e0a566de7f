package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/llama"
)

// restored is the result of a restore by a team of ranks.
type restored struct {
	digest  string
	bytes   int64
	wall    time.Duration // of the slowest rank
	rebuilt uint64        // stripes
}

// restore makes another number of ranks restore the second step.
func (d *demo) restore(ctx context.Context, launch string) (*restored, error) {
	return d.restoreBy(ctx, job{cluster: d.cluster, run: runPath, launch: launch}, 2, moraine.NVMe)
}

// restoreBy makes ranks restore the latest step at a level of the job's run. It must be this one, with
// its number as seed.
func (d *demo) restoreBy(ctx context.Context, j job, step uint64, level moraine.Level) (*restored, error) {
	j.world, j.readOnly = restoreRanks, true
	t, err := d.startTeam(ctx, j)
	if err != nil {
		return nil, err
	}
	defer t.dismiss()
	if err := t.order(order{Do: "restore", Seed: step, Level: level}); err != nil {
		return nil, err
	}
	events, err := t.collect(ctx, restoreRanks, "restored", nil)
	if err != nil {
		return nil, err
	}
	r := &restored{}
	var sums []llama.Sum
	for _, e := range events {
		sums = append(sums, e.Sums...)
		r.rebuilt += e.Rebuilt
		r.wall = max(r.wall, e.Wall)
		r.bytes += e.Bytes
		if e.Step != step {
			return nil, fmt.Errorf("rank %d restored step %d, not %d", e.Rank, e.Step, step)
		}
	}
	r.digest, err = llama.Digest(modelOf(j.bytes), sums)
	return r, err
}

// restoreDegraded is step 3: another number of ranks restores while the
// chunkservers are still dead.
func (d *demo) restoreDegraded(ctx context.Context) error {
	d.cfg.Say("\n3. %d ranks restore it, with the two chunkservers still dead.", restoreRanks)
	r, err := d.restore(ctx, "restore")
	if err != nil {
		return err
	}
	d.cfg.Say("  %.2f GiB in %v (%.2f GB/s), %d stripes rebuilt from parity\n  saved    %s\n  restored %s",
		gib(r.bytes), r.wall.Round(time.Millisecond), float64(r.bytes)/r.wall.Seconds()/1e9, r.rebuilt, d.digests[2], r.digest)
	d.claim("3", "3 ranks restore it byte for byte while they are dead", r.digest == d.digests[2] && r.rebuilt > 0,
		"%d stripes rebuilt from parity, digest %s, %v", r.rebuilt, r.digest, r.wall.Round(time.Millisecond))
	return nil
}
