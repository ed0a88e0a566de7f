// Package mem keeps chunks in the memory of a host: one arena of aligned buffers
// with a hard limit. Chunks are received into it, written from it to their device
// without another copy, and stay in it as a read cache. The package implements
// tiers.Tier over another tier, that of the device.
//
// It promises nothing that the device does not keep, with one exception: Take at
// level Memory. Such a chunk is only in this process until Run has written it
// behind, and it is lost if the process ends before that. A client that requests
// the level detects the loss by the device's boot epoch. Nothing in memory survives
// a restart.
//
// One path through the package: Arena.Get (arena.go) lends a buffer, and evicts
// unused chunks (cache.go) if it must. Tier.Take (take.go) writes the chunk to the
// device, or has it written behind (behind.go), and keeps it. View (tier.go) lends
// a range of a chunk in memory. Otherwise it reads from the device, and caches the
// chunks that it read whole. A chunk of which many small parts are read it reads whole
// (promote.go). TakeDeferred puts off the write (deferred.go).
//
// Locks, outermost first: claims of chunks, behind.mu, deferred.mu, cache.mu, Arena.mu.
// The last three are never held together, and none is held across I/O. scattered.mu is
// held with Arena.mu alone.
package mem

import (
	"cmp"
	"errors"
	"log/slog"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/tiers"
)

// Config sets the limits of a Memory.
type Config struct {
	Arena ArenaConfig
	// DirtyBytes limits the chunks that are only in memory. Beyond it chunks go
	// straight to their devices. 0: a quarter of the arena.
	DirtyBytes int64
}

// Deps are the dependencies that a test replaces.
type Deps struct {
	Clock clock.Clock
	Log   *slog.Logger
}

// Memory is the memory of a host, shared by all of its devices.
type Memory struct {
	deps  Deps
	arena *Arena
	cache *cache
	dirty *limit.Semaphore // bytes of dirty chunks
	tiers int

	deferred  deferred
	scattered *scattered
}

// Open maps the arena. Errors: those of OpenArena.
func Open(cfg Config, deps Deps) (*Memory, error) {
	cfg.DirtyBytes = cmp.Or(cfg.DirtyBytes, cfg.Arena.Bytes/4)
	if cfg.DirtyBytes < 0 || cfg.DirtyBytes > cfg.Arena.Bytes*3/4 {
		return nil, &moraine.Error{Op: "mem.Open", Kind: moraine.InvalidArgument,
			Err: errors.New("dirty chunks may use at most three quarters of the memory: lower DirtyBytes")}
	}
	deps.Clock = cmp.Or[clock.Clock](deps.Clock, clock.System{})
	deps.Log = cmp.Or(deps.Log, slog.New(slog.DiscardHandler))
	arena, err := OpenArena(cfg.Arena)
	if err != nil {
		return nil, err
	}
	m := &Memory{deps: deps, arena: arena, cache: newCache(arena), dirty: limit.NewSemaphore(cfg.DirtyBytes, limit.Resource{Name: "memory of dirty chunks"})}
	m.deferred.limit = cfg.DirtyBytes / 4 * 3
	m.scattered = newScattered(arena, cfg.Arena.Bytes)
	arena.short = m.shorten
	return m, nil
}

// short reports whether more than half of the memory for dirty chunks is in use that the deferred ones
// leave, or a caller waits for a buffer.
func (m *Memory) short() bool {
	if m.arena.awaited() {
		return true
	}
	deferred, _ := m.deferred.stats()
	return 2*(m.dirty.InUse()-deferred) > m.dirty.Size()-deferred
}

// Arena lends the buffers for Take, and for the reads of the devices.
func (m *Memory) Arena() *Arena { return m.arena }

// Lower is what a Tier requires of the tier below.
type Lower interface {
	tiers.Tier
	tiers.Viewer
	tiers.Deleter
}

// Over puts memory over a device's tier, and becomes the tier's owner. The tier
// accepts chunks of a cluster. Over is called for one device after the other,
// before they are used.
func (m *Memory) Over(lower Lower, cluster moraine.UUID) *Tier {
	t := &Tier{m: m, number: m.tiers, cluster: cluster, lower: lower, behind: newBehind(m)}
	m.tiers++
	return t
}

// Close frees the memory as soon as the last buffer is returned. All tiers must be
// closed.
func (m *Memory) Close() { m.arena.Close() }

// Stats is the state of the memory at one moment.
type Stats struct {
	Arena      ArenaStats
	CleanBytes int64 // cached for reads
	DirtyBytes int64 // not on a device yet
	// DeferredBytes are those of them that no writer takes yet. Pressed counts the deferred chunks
	// that were written because memory was short.
	DeferredBytes int64
	Pressed       uint64
	Chunks        int // all chunks in memory
	Hits          uint64
	Misses        uint64
	Evictions     uint64
}

// Stats returns the state of the memory.
func (m *Memory) Stats() Stats {
	s := Stats{Arena: m.arena.Stats()}
	s.DeferredBytes, s.Pressed = m.deferred.stats()
	c := m.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	s.CleanBytes, s.Chunks, s.DirtyBytes = c.smallBytes+c.mainBytes, len(c.chunks), c.dirtyBytes
	s.Hits, s.Misses, s.Evictions = c.hits, c.misses, c.evictions
	return s
}
