package chunkserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// Limits are what a chunkserver may use of the host that it shares with other
// programs. Zero is no limit.
type Limits struct {
	// BytesPerSecond limits the bytes of chunks and objects received and sent,
	// together. LeastBandwidth or more.
	BytesPerSecond int64
	// CPUs limits the processor time of the process, in processors. LeastCPUs or
	// more.
	CPUs float64
	// BackgroundBytesPerSecond is the rate for other chunkservers' movers while no
	// client uses this server, and an eighth of it beside clients (512 MiB).
	// Repairs of stripes without any redundancy left are exempt.
	BackgroundBytesPerSecond int64
}

const (
	// LeastBandwidth is the smallest byte limit that passes a chunk of the largest
	// size before its sender times out.
	LeastBandwidth = 1 << 20
	// LeastCPUs is the smallest processor limit that leaves some for requests after
	// what the process itself needs.
	LeastCPUs = 0.05
)

func (l *Limits) validate() error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "chunkserver.NewNeighbour", Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case l.BytesPerSecond < 0 || l.CPUs < 0 || l.BackgroundBytesPerSecond < 0 || math.IsNaN(l.CPUs):
		return bad("limit is negative or not a number")
	case l.BytesPerSecond > 0 && l.BytesPerSecond < LeastBandwidth:
		return bad("bandwidth limit of %d bytes per second is too low: the minimum is 1 MiB per second", l.BytesPerSecond)
	case l.CPUs > 0 && l.CPUs < LeastCPUs:
		return bad("limit of %v processors is too low: the minimum is %v", l.CPUs, LeastCPUs)
	}
	return nil
}

// NeighbourDeps are the dependencies that a test replaces.
type NeighbourDeps struct {
	Clock   clock.Clock
	CPUTime func() time.Duration // used by the process so far
	Metrics *Metrics
	Log     *slog.Logger
}

// Neighbour is a chunk service that delays requests before they are served. The
// chunkserver thereby stays within its limits, and repairs leave room for clients.
// A put waits before its bytes are read, which delays only that connection. Work
// that the process does without a request uses Take on the same limits.
type Neighbour struct {
	transport.ChunkService
	deps  NeighbourDeps
	bytes *rate.Limiter // nil: no limit
	turn  chan struct{} // capacity 1: its holder takes bytes
	floor *bytesFloor   // for repairs; nil: no limit
	cpu   *cpuBudget    // nil: no limit
	share *backgroundShare
	waits limit.Resource // all limits, as one resource that requests wait for
}

// DefaultBackground is the default of Limits.BackgroundBytesPerSecond.
const DefaultBackground = 512 << 20

// NewNeighbour applies limits to a service. It starts nothing.
func NewNeighbour(s transport.ChunkService, limits Limits, deps NeighbourDeps) (*Neighbour, error) {
	if err := limits.validate(); err != nil {
		return nil, err
	}
	limits.BackgroundBytesPerSecond = cmp.Or(limits.BackgroundBytesPerSecond, DefaultBackground)
	deps.Clock = cmp.Or[clock.Clock](deps.Clock, clock.System{})
	if deps.CPUTime == nil {
		deps.CPUTime = processTime
	}
	if deps.Metrics == nil {
		deps.Metrics = NewMetrics(nil)
	}
	n := &Neighbour{ChunkService: s, deps: deps, turn: make(chan struct{}, 1), share: newBackgroundShare(limits.BackgroundBytesPerSecond),
		waits: limit.Resource{Name: "bandwidth and processor time of the chunkserver", Advice: "raise its limits, or use it less",
			Reports: limit.NewReporter(deps.Log, deps.Metrics.WaitsExceeded)}}
	if limits.BytesPerSecond > 0 {
		n.bytes = rate.NewLimiter(rate.Limit(limits.BytesPerSecond), moraine.MaxChunkSize)
		n.floor = newBytesFloor(limits.BytesPerSecond, deps.Clock.Now())
	}
	if limits.CPUs > 0 {
		n.cpu = &cpuBudget{cpus: limits.CPUs, last: deps.Clock.Now(), used: deps.CPUTime()}
	}
	return n, nil
}

// PutChunk implements transport.ChunkService.
func (n *Neighbour) PutChunk(ctx context.Context, req *wire.PutChunk, p transport.Payload) (*wire.PutChunkReply, error) {
	if err := n.admit(ctx, p.Len(), priorityOf(req)); err != nil {
		return nil, errors.Join(err, p.Discard())
	}
	return n.ChunkService.PutChunk(ctx, req, p)
}

// GetChunk implements transport.ChunkService.
func (n *Neighbour) GetChunk(ctx context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), error) {
	if err := n.admit(ctx, int(min(req.Length, moraine.MaxChunkSize)), priorityOf(req)); err != nil {
		return nil, nil, nil, err
	}
	return n.ChunkService.GetChunk(ctx, req)
}

// cachedChunks is a chunk service that serves from memory, as Server does.
type cachedChunks interface {
	GetCached(ctx context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), bool)
}

// GetCached is that of the service. Where requests may have to wait for a limit, ok is false.
func (n *Neighbour) GetCached(ctx context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), bool) {
	cached, ok := n.ChunkService.(cachedChunks)
	if !ok || n.bytes != nil || n.cpu != nil || isBackground(ctx) {
		return nil, nil, nil, false
	}
	n.share.noteClient(n.deps.Clock.Now())
	return cached.GetCached(ctx, req)
}

// GetPiece implements transport.ChunkService.
func (n *Neighbour) GetPiece(ctx context.Context, req *wire.GetPiece) (*wire.GetPieceReply, [][]byte, func(), error) {
	if err := n.admit(ctx, int(min(req.Length, moraine.MaxChunkSize)), priorityRepair); err != nil {
		return nil, nil, nil, err
	}
	return n.ChunkService.GetPiece(ctx, req)
}

// isBackground reports whether a request comes from another chunkserver's mover.
func isBackground(ctx context.Context) bool {
	peer := transport.PeerFrom(ctx)
	return peer != nil && peer.Role == transport.RoleChunkserver
}

// takeSlice is how much Take takes at a time. A client's request that arrives
// meanwhile waits for no more than that.
const takeSlice = 1 << 20

// Take waits until the process may receive or send more bytes of chunks and
// objects, and use more processor time. It is for work without a request: that of
// its mover and scrub, and its reads from the bucket. A nil Neighbour has no
// limits.
func (n *Neighbour) Take(ctx context.Context, bytes int64) error {
	return n.take(ctx, bytes, (*Neighbour).takeBytes)
}

// TakeForRepair is Take for repairs, which have a reserved floor of the bandwidth
// however many clients wait.
func (n *Neighbour) TakeForRepair(ctx context.Context, bytes int64) error {
	return n.take(ctx, bytes, func(n *Neighbour, ctx context.Context, slice int) error { return n.takeForRepair(ctx, slice, false) })
}

func (n *Neighbour) take(ctx context.Context, bytes int64, slices func(*Neighbour, context.Context, int) error) error {
	if n == nil {
		return ctx.Err()
	}
	if err := n.takeCPU(ctx); err != nil {
		return err
	}
	for n.bytes != nil && bytes > 0 {
		slice := min(bytes, takeSlice)
		if err := slices(n, ctx, int(slice)); err != nil {
			return err
		}
		bytes -= slice
	}
	return ctx.Err()
}

// takeCPU waits until processor time is left, for cpuOwed in total. Work that never
// waits could otherwise block it for ever.
func (n *Neighbour) takeCPU(ctx context.Context) error {
	for left := cpuOwed; n.cpu != nil && left > 0; {
		wait := min(n.cpu.wait(n.deps.Clock.Now(), n.deps.CPUTime()), left)
		if wait <= 0 {
			break
		}
		if err := n.hold(ctx, "cpus", wait); err != nil {
			return err
		}
		left -= wait
	}
	return nil
}

// admit waits until a request of so many bytes may be served. It ignores the
// priority of clients' requests: they never wait for the share of background work.
// A wait that exceeds the request's deadline returns Timeout, and is reported.
func (n *Neighbour) admit(ctx context.Context, bytes int, p priority) error {
	began := n.deps.Clock.Now()
	if n.admitAt(ctx, began, bytes, p) != nil { // ctx has ended
		return n.waits.GaveUp(ctx, n.deps.Clock.Now().Sub(began))
	}
	return nil
}

func (n *Neighbour) admitAt(ctx context.Context, began time.Time, bytes int, p priority) error {
	background := isBackground(ctx)
	if !background {
		n.share.noteClient(began)
	}
	if err := n.takeCPU(ctx); err != nil {
		return err
	}
	if n.bytes != nil {
		take := n.takeBytes
		if background {
			take = func(ctx context.Context, bytes int) error { return n.takeForRepair(ctx, bytes, true) }
		}
		if err := take(ctx, bytes); err != nil {
			return err
		}
	}
	if !background {
		return nil
	}
	return n.admitBackground(ctx, bytes, n.deps.Clock.Now().Sub(began), p)
}

// takeBytes waits until so many bytes may be sent or received. Callers take bytes
// one after the other, so that a caller that stops waiting has taken none.
// Otherwise, under overload, callers that stopped waiting would use up the whole
// limit.
func (n *Neighbour) takeBytes(ctx context.Context, bytes int) error {
	select {
	case n.turn <- struct{}{}:
		return n.takeInTurn(ctx, bytes)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// takeInTurn takes bytes and passes on the turn, which its caller has.
func (n *Neighbour) takeInTurn(ctx context.Context, bytes int) error {
	defer func() { <-n.turn }()
	now := n.deps.Clock.Now()
	r := n.bytes.ReserveN(now, min(bytes, n.bytes.Burst()))
	err := n.hold(ctx, "bandwidth", r.DelayFrom(now))
	if err != nil {
		r.CancelAt(n.deps.Clock.Now())
	}
	return err
}

func (n *Neighbour) hold(ctx context.Context, by string, wait time.Duration) error {
	if wait <= 0 {
		return ctx.Err()
	}
	n.deps.Metrics.HeldBack.WithLabelValues(by).Inc()
	return n.sleep(ctx, wait)
}

// sleep waits for the time given, unless ctx ends before.
func (n *Neighbour) sleep(ctx context.Context, wait time.Duration) error {
	if wait <= 0 {
		return ctx.Err()
	}
	select {
	case <-n.deps.Clock.After(wait):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cpuBudget is the processor time that the process may still use. It grows with
// time, at the configured number of processors, and shrinks by the time used. It
// can save up a short time.
type cpuBudget struct {
	cpus float64

	mu   sync.Mutex // guards the fields below
	last time.Time
	used time.Duration
	left time.Duration
}

// cpuSaved is how much unused time can be saved up. cpuOwed is the longest time for
// which past use delays requests, and the longest total wait of one request. Most
// work waits before it begins. Other work, such as compactions of indexes and the
// runtime, never waits. It must not delay requests for so long that callers take
// the server for dead.
const cpuSaved, cpuOwed = 100 * time.Millisecond, 5 * time.Second

// wait accounts for the time used until now, and returns how long requests must
// wait.
func (b *cpuBudget) wait(now time.Time, used time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += time.Duration(float64(now.Sub(b.last))*b.cpus) - (used - b.used)
	b.left = min(b.left, time.Duration(float64(cpuSaved)*b.cpus))
	b.left = max(b.left, -time.Duration(float64(cpuOwed)*b.cpus))
	b.last, b.used = now, used
	if b.left >= 0 {
		return 0
	}
	return max(time.Duration(float64(-b.left)/b.cpus), time.Millisecond)
}
