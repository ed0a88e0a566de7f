package repair

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
)

const (
	// maxStrays bounds the chunks that the leader remembers until the device of their record has
	// reported. Others wait for the next report of their own device.
	maxStrays = 1 << 18
	// strayLook is the number of chunks judged at once, and strayEvery the pause between.
	strayLook, strayEvery = 4096, time.Second
)

// strays are chunks that fit a record which names another device, while it is unknown whether that
// device has the chunk. Methods may be called concurrently.
type strays struct {
	mu     sync.Mutex
	chunks map[strayKey]*statepb.AdoptedChunk
}

type strayKey struct {
	stripe uint64
	index  uint32
	device uint32
}

func strayKeyOf(c *statepb.AdoptedChunk) strayKey {
	return strayKey{c.GetChunk().GetStripe(), c.GetChunk().GetIndex(), c.GetDevice()}
}

func (k strayKey) compare(o strayKey) int {
	return cmp.Or(cmp.Compare(k.stripe, o.stripe), cmp.Compare(k.index, o.index), cmp.Compare(k.device, o.device))
}

func newStrays() *strays { return &strays{chunks: map[strayKey]*statepb.AdoptedChunk{}} }

// add remembers chunks while there is room.
func (s *strays) add(chunks []*statepb.AdoptedChunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range chunks {
		if k := strayKeyOf(c); s.chunks[k] != nil || len(s.chunks) < maxStrays {
			s.chunks[k] = c
		}
	}
}

func (s *strays) remove(chunks []*statepb.AdoptedChunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range chunks {
		delete(s.chunks, strayKeyOf(c))
	}
}

// all returns the remembered chunks, in order.
func (s *strays) all() []*statepb.AdoptedChunk {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.chunks) == 0 {
		return nil
	}
	out := make([]*statepb.AdoptedChunk, 0, len(s.chunks))
	for _, c := range s.chunks {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b *statepb.AdoptedChunk) int { return strayKeyOf(a).compare(strayKeyOf(b)) })
	return out
}

// adopt makes records name chunks that fit them.
func (k *Reports) adopt(ctx context.Context, chunks []*statepb.AdoptedChunk) error {
	adopted := uint64(0)
	for some := range slices.Chunk(chunks, fleet.MaxAdopted) {
		resp, err := k.Command(ctx, &statepb.Command{Op: &statepb.Command_AdoptChunks{
			AdoptChunks: &statepb.AdoptChunks{Chunks: some, GraceMillis: uint64(k.cfg.Grace.Milliseconds())}}})
		if err != nil {
			return err
		}
		adopted += resp.GetAdopt().GetAdopted()
	}
	if adopted > 0 {
		k.Metrics.AdoptedChunks.Add(float64(adopted))
		k.Log.Info("chunks adopted", "chunks", adopted)
	}
	return nil
}

// adoptStrays judges the waiting chunks repeatedly, until ctx ends.
func (k *Reports) adoptStrays(ctx context.Context) {
	for k.Pause(ctx, nil, strayEvery) {
		for some := range slices.Chunk(k.strays.all(), strayLook) {
			if err := k.decideStrays(ctx, some); err != nil {
				if ctx.Err() == nil {
					k.Log.Warn("chunks could not be adopted", "err", err)
				}
				break
			}
		}
	}
}

// decideStrays adopts the chunks that are wanted, and forgets all about which nothing is unknown
// any more.
func (k *Reports) decideStrays(ctx context.Context, chunks []*statepb.AdoptedChunk) error {
	var decided, wanted []*statepb.AdoptedChunk
	err := k.Store.View(func(r kvtx.Reader, _ uint64) error {
		now, err := kvtx.ClusterTime(k.Machine.View(r))
		if err != nil {
			return err
		}
		for _, c := range chunks {
			v, err := fleet.ClassifyChunk(k.Machine.View(r), moraine.DeviceID(c.GetDevice()), c.GetChunk(), now-min(now, uint64(k.cfg.Grace.Milliseconds())))
			if err != nil {
				return err
			}
			switch v.Fate {
			case fleet.Undecided, fleet.Pending:
				continue
			case fleet.Wanted, fleet.Superseded:
				wanted = append(wanted, c)
			}
			decided = append(decided, c)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := k.adopt(ctx, wanted); err != nil {
		return err
	}
	k.strays.remove(decided)
	return nil
}
