package chunkserver

import (
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

// Limits are what a chunkserver may take of the host that it shares with others. A
// zero is no limit.
type Limits struct {
	// BytesPerSecond bounds the bytes of chunks and objects that are received and
	// sent, together, LeastBandwidth or more.
	BytesPerSecond int64
	// CPUs bounds the processor time of the process, in processors, LeastCPUs or more.
	CPUs float64
	// BackgroundBytesPerSecond is the most that other chunkservers' movers get of this
	// one while no client uses it, and an eighth of it beside clients (512 MiB). Repairs
	// of stripes that have no redundancy left are not bound by it.
	BackgroundBytesPerSecond int64
}

const (
	// LeastBandwidth is the least bound on bytes a second that lets a chunk of the
	// greatest size through before its sender gives up.
	LeastBandwidth = 1 << 20
	// LeastCPUs is the least bound on processors that leaves some to requests beside what
	// the process needs by itself.
	LeastCPUs = 0.05
)

func (l *Limits) validate() error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "chunkserver.NewNeighbour", Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case l.BytesPerSecond < 0 || l.CPUs < 0 || l.BackgroundBytesPerSecond < 0 || math.IsNaN(l.CPUs):
		return bad("a limit is negative, or no number")
	case l.BytesPerSecond > 0 && l.BytesPerSecond < LeastBandwidth:
		return bad("a bandwidth limit of %d bytes a second would let next to nothing through: the least is 1 MiB", l.BytesPerSecond)
	case l.CPUs > 0 && l.CPUs < LeastCPUs:
		return bad("with %v processors next to nothing would be served: the least is %v", l.CPUs, LeastCPUs)
	}
	return nil
}

// NeighbourDeps is what a test replaces.
type NeighbourDeps struct {
	Clock   clock.Clock
	CPUTime func() time.Duration // of the process so far
	Metrics *Metrics
	Log     *slog.Logger
}

// Neighbour is a chunk service that holds requests back at the door, so that a
// chunkserver stays within its limits, and repairs leave room to clients. A put
// waits before its bytes are read, which holds back that connection alone. What the
// process does unasked takes of the same limits by Take.
type Neighbour struct {
	transport.ChunkService
	deps  NeighbourDeps
	bytes *rate.Limiter // nil: no limit
	turn  chan struct{} // of one place: who has it takes of bytes
	floor *bytesFloor   // of repairs; nil: no limit
	cpu   *cpuBudget    // nil: no limit
	share *backgroundShare
	waits limit.Resource // all of them: what requests wait for at the door
}

// DefaultBackground is the default of Limits.BackgroundBytesPerSecond.
const DefaultBackground = 512 << 20

// NewNeighbour bounds a service. It starts nothing.
func NewNeighbour(s transport.ChunkService, limits Limits, deps NeighbourDeps) (*Neighbour, error) {
	if err := limits.validate(); err != nil {
		return nil, err
	}
	if limits.BackgroundBytesPerSecond == 0 {
		limits.BackgroundBytesPerSecond = DefaultBackground
	}
	if deps.Clock == nil {
		deps.Clock = clock.System{}
	}
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

// GetPiece implements transport.ChunkService.
func (n *Neighbour) GetPiece(ctx context.Context, req *wire.GetPiece) (*wire.GetPieceReply, [][]byte, func(), error) {
	if err := n.admit(ctx, int(min(req.Length, moraine.MaxChunkSize)), priorityRepair); err != nil {
		return nil, nil, nil, err
	}
	return n.ChunkService.GetPiece(ctx, req)
}

// isBackground reports whether a request is of another chunkserver's mover.
func isBackground(ctx context.Context) bool {
	peer := transport.PeerFrom(ctx)
	return peer != nil && peer.Role == transport.RoleChunkserver
}

// takeSlice is how much Take takes at a time, so that a request of a client which comes
// meanwhile waits for no more than that.
const takeSlice = 1 << 20

// Take waits until the process may receive or send so many bytes more of chunks and
// objects, and go on working. It is for what nobody asks for at the door: what its mover
// and its scrub do, and what it reads from the bucket. A nil Neighbour has no limits.
func (n *Neighbour) Take(ctx context.Context, bytes int64) error {
	return n.take(ctx, bytes, (*Neighbour).takeBytes)
}

// TakeForRepair is Take for repairs, which get a floor of the bandwidth however many
// clients wait for it.
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

// takeCPU waits until processor time is left, for cpuOwed in all: what is used meanwhile by
// work that waits for nothing may go on for ever.
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

// admit waits until a request of so many bytes may be served. Of clients' requests the
// priority means nothing: they never wait for the share of background work. A wait that
// the request's deadline ends is Timeout, and is reported.
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

// takeBytes waits until so many bytes may be sent or received. One after the other
// takes them, so that who gives up while it waits has taken none: else, where more is
// asked for than there is, all of it would go to those who have given up.
func (n *Neighbour) takeBytes(ctx context.Context, bytes int) error {
	select {
	case n.turn <- struct{}{}:
		return n.takeInTurn(ctx, bytes)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// takeInTurn takes bytes and passes the turn on, which its caller has.
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

// sleep waits for as long, unless ctx has ended or ends before.
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

// cpuBudget is the processor time that the process may still take: it grows with
// time, at so many processors, and shrinks by what was used. A short while of it can
// be saved up.
type cpuBudget struct {
	cpus float64

	mu   sync.Mutex // guards what follows
	last time.Time
	used time.Duration
	left time.Duration
}

// cpuSaved is how much time of not using anything may be saved up, and cpuOwed the
// longest that nobody may go on for what was used before, and that one who asks waits in
// all. Most of the work waits before
// it begins; what does not (compactions of indexes, what the runtime does) must not keep
// the door shut for so long that callers take the server for a dead one.
const cpuSaved, cpuOwed = 100 * time.Millisecond, 5 * time.Second

// wait takes in what was used until now, and returns how long nobody may go on.
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
