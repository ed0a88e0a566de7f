package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
	"golang.org/x/sync/errgroup"
)

// Loopback measures the network of this machine, without storage. It uses our
// framing over loopback between two processes, in the cluster's mode and over
// its kind of socket. The server reads payloads into its own buffers, and sends
// bytes from its own buffers; neither end computes checksums.
type Loopback struct {
	// Address is the server's, Certs the directory of the certificates.
	Address, Certs string
	Mode           string
	// Put sends payloads of Block bytes; otherwise they are received. InFlight run
	// concurrently.
	Put             bool
	Block, InFlight int
}

// The servers of Loopback use the names of two of the cluster's servers: servers
// need no session token between each other.
const (
	loopbackServer = "n1"
	loopbackClient = "n2"
)

// throughput is Loopback as a limit in bytes per second.
func throughput(put bool) Loopback {
	return Loopback{Put: put, Block: limitBlock, InFlight: limitInFlight}
}

// loopback measures for so many bytes, or seconds if bytes is 0. The server is this
// process, the client a worker.
func (e *Env) loopback(ctx context.Context, l Loopback, bytes int64) (r Result, u usage, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	id, err := pki.LoadIdentity(pki.FilesIn(e.Cluster.Certs(), loopbackServer))
	if err != nil {
		return r, u, err
	}
	addrs, err := devcluster.FreeAddresses(1)
	if err != nil {
		return r, u, err
	}
	s, err := transport.NewServer(transport.ServerConfig{Addresses: addrs, Mode: transport.Mode(e.Mode), ShortCircuit: e.ShortCircuit},
		transport.ServerDeps{Handler: transport.HandlerForChunks(newLoopbackEnd(&l)), Identity: id})
	if err != nil {
		return r, u, err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-ended)
	}()
	select {
	case <-s.Ready():
	case <-ctx.Done():
		return r, u, ctx.Err()
	}
	l.Address, l.Certs, l.Mode = addrs[0], e.Cluster.Certs(), e.Mode
	results, u, err := e.run(ctx, []Work{{Op: OpLoopback, Loopback: &l, Bytes: bytes, Seconds: e.Seconds}})
	if err != nil {
		return r, u, err
	}
	return results[0], u, nil
}

// loopbackRate is the limit in bytes per second, with its line.
func (e *Env) loopbackRate(ctx context.Context, name string, put bool, bytes int64) (Line, error) {
	e.Progress("%s", name)
	r, u, err := e.loopback(ctx, throughput(put), bytes)
	if err != nil {
		return Line{}, err
	}
	u.wall = time.Duration(r.Seconds * float64(time.Second))
	return e.rate(name, float64(r.Bytes), u, 0), nil
}

// loopbackEnd answers Loopback's requests.
type loopbackEnd struct {
	transport.ChunkService
	bufs chan []byte
}

func newLoopbackEnd(l *Loopback) *loopbackEnd {
	s := &loopbackEnd{bufs: make(chan []byte, l.InFlight)}
	for i := range l.InFlight {
		b := make([]byte, l.Block)
		fillRandom(b, uint64(i))
		s.bufs <- b
	}
	return s
}

// PutChunk implements transport.ChunkService.
func (s *loopbackEnd) PutChunk(_ context.Context, _ *wire.PutChunk, p transport.Payload) (*wire.PutChunkReply, error) {
	b := <-s.bufs
	err := p.ReadInto(b, nil)
	s.bufs <- b
	return &wire.PutChunkReply{}, err
}

// GetChunk implements transport.ChunkService.
func (s *loopbackEnd) GetChunk(_ context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), error) {
	b := <-s.bufs
	return &wire.GetChunkReply{}, [][]byte{b[:req.Length]}, func() { s.bufs <- b }, nil
}

// work is the client's side: requests until total bytes were moved or, if total is
// 0, until the time is over.
func (l *Loopback) work(ctx context.Context, total int64, seconds float64) (Result, error) {
	id, err := pki.LoadIdentity(pki.FilesIn(l.Certs, loopbackClient))
	if err != nil {
		return Result{}, err
	}
	pool, err := transport.NewPool(transport.PoolConfig{Mode: transport.Mode(l.Mode)}, transport.PoolDeps{Identity: id})
	if err != nil {
		return Result{}, err
	}
	defer pool.Close() //nolint:errcheck // a failed close loses nothing
	c := pool.Chunks(loopbackServer, []string{l.Address})
	bufs := make([][]byte, l.InFlight)
	for i := range bufs {
		bufs[i] = make([]byte, l.Block)
		fillRandom(bufs[i], uint64(i))
		if err := l.once(ctx, c, bufs[i]); err != nil { // connects
			return Result{}, err
		}
	}
	var asked, ops atomic.Int64
	start := time.Now()
	end := start.Add(time.Duration(seconds * float64(time.Second)))
	more := func() bool {
		if total > 0 {
			return (asked.Add(1)-1)*int64(l.Block) < total
		}
		return time.Now().Before(end)
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, b := range bufs {
		g.Go(func() error {
			for more() {
				if err := l.once(ctx, c, b); err != nil {
					return err
				}
				ops.Add(1)
			}
			return nil
		})
	}
	err = g.Wait()
	n := ops.Load()
	return Result{Bytes: n * int64(l.Block), Ops: n, Seconds: time.Since(start).Seconds()}, err
}

func (l *Loopback) once(ctx context.Context, c transport.Chunks, b []byte) error {
	if l.Put {
		_, err := c.Put(ctx, &wire.PutChunk{Stripe: 1}, b)
		return err
	}
	_, n, err := c.Get(ctx, &wire.GetChunk{Stripe: 1, Length: uint64(len(b))}, b, nil)
	if err == nil && n != len(b) {
		err = fmt.Errorf("bench: received %d bytes, requested %d", n, len(b))
	}
	return err
}
