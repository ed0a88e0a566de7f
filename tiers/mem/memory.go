// Package mem keeps chunks in the memory of a host: one arena of aligned buffers
// with a hard limit, into which chunks are received, from which they are written to
// their device without another copy, and in which they stay as a cache of what is
// read. It implements tiers.Tier over another one, the device's.
//
// It promises nothing that the device does not keep, but for Take at level Memory:
// that chunk is in this process alone until Run has written it behind, and is gone
// where the process ends before. Whoever asked for the level knows that by the
// device's boot epoch; nothing here survives a start.
//
// One path through it: Arena.Get (arena.go) lends a buffer, giving up chunks that
// nobody wants (cache.go) where it must; Tier.Take (take.go) writes it to the device,
// or has that done behind (behind.go), and keeps it; View (tier.go) lends a range of
// what is kept, and else asks the device, and keeps what it read of whole chunks.
//
// Locks, outermost first: claims of chunks, behind.mu, cache.mu, Arena.mu; the last
// two are never held together, and none across I/O.
package mem

import (
	"errors"
	"log/slog"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/tiers"
)

// Config bounds a Memory.
type Config struct {
	Arena ArenaConfig
	// DirtyBytes bounds the chunks that are in memory alone; beyond it they go
	// straight to their devices. 0: a quarter of the arena.
	DirtyBytes int64
}

// Deps is what a test replaces.
type Deps struct {
	Clock clock.Clock
	Log   *slog.Logger
}

// Memory is the memory of a host, over all of its devices.
type Memory struct {
	deps  Deps
	arena *Arena
	cache *cache
	dirty *limit.Semaphore // bytes of dirty chunks
	tiers int
}

// Open maps the arena. Errors: those of OpenArena.
func Open(cfg Config, deps Deps) (*Memory, error) {
	if cfg.DirtyBytes == 0 {
		cfg.DirtyBytes = cfg.Arena.Bytes / 4
	}
	if cfg.DirtyBytes < 0 || cfg.DirtyBytes > cfg.Arena.Bytes*3/4 {
		return nil, &moraine.Error{Op: "mem.Open", Kind: moraine.InvalidArgument,
			Err: errors.New("dirty chunks may take three quarters of the memory at most")}
	}
	if deps.Clock == nil {
		deps.Clock = clock.System{}
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	arena, err := OpenArena(cfg.Arena)
	if err != nil {
		return nil, err
	}
	return &Memory{deps: deps, arena: arena, cache: newCache(arena), dirty: limit.NewSemaphore(cfg.DirtyBytes, limit.Resource{Name: "memory of dirty chunks"})}, nil
}

// Arena is what buffers for Take, and for the reads of the devices, come from.
func (m *Memory) Arena() *Arena { return m.arena }

// Lower is what a Tier here needs of the one below.
type Lower interface {
	tiers.Tier
	tiers.Viewer
	tiers.Deleter
}

// Over puts memory over a device's tier, of which it becomes the owner, and which
// takes chunks of a cluster. It is called for one device after the other, before they are used.
func (m *Memory) Over(lower Lower, cluster moraine.UUID) *Tier {
	t := &Tier{m: m, number: m.tiers, cluster: cluster, lower: lower, behind: newBehind()}
	m.tiers++
	return t
}

// Close gives the memory back as soon as the last buffer is; all tiers are closed.
func (m *Memory) Close() { m.arena.Close() }

// Stats is the state of the memory at one moment.
type Stats struct {
	Arena      ArenaStats
	CleanBytes int64 // kept to be read
	DirtyBytes int64 // kept since they are nowhere else
	Chunks     int   // kept
	Hits       uint64
	Misses     uint64
	Evictions  uint64
}

// Stats returns the state of the memory.
func (m *Memory) Stats() Stats {
	s := Stats{Arena: m.arena.Stats()}
	c := m.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	s.CleanBytes, s.Chunks, s.DirtyBytes = c.smallBytes+c.mainBytes, len(c.chunks), c.dirtyBytes
	s.Hits, s.Misses, s.Evictions = c.hits, c.misses, c.evictions
	return s
}
