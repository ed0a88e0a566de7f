// Package chunkserver is the service that keeps chunks on one host: it admits
// requests, verifies what arrives, keeps it on its devices (package tiers/disk) and
// as long as there is room in memory (package tiers/mem), serves and verifies what is read, and tells the metadata service what it has.
//
// It decides nothing about which chunks there should be: clients put them where
// the metadata service placed them, and a chunk is deleted only when the service
// says so. It dials other servers only to see whether they can be reached (probe.go), and sends
// them nothing.
//
// The path of a put: PutChunk checks the caller's token, its capability and the device -> takes
// an aligned buffer of the arena, for which chunks that are only kept to be read go,
// waiting if memory is short, which holds back only that connection -> reads the payload into it, summing each piece while it is in
// cache -> holds the combined sum against the one that the client computed at
// its first copy -> hands the buffer to the device, which writes it where it
// lies and syncs -> keeps it to be read -> answers with the level reached and the device's boot epoch.
//
// Run does the rest: it opens the devices, registers them, sends a heartbeat
// each second, carries out the deletions in its replies, and reports all chunks
// of each device now and then. SetDevices changes which devices those are meanwhile.
package chunkserver

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/objectkey"
	"github.com/morainefs/moraine/tiers/mem"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability"
	"golang.org/x/sync/errgroup"
)

// Server is one chunkserver. It implements transport.ChunkService.
type Server struct {
	cfg  Config
	deps Deps
	// pieces reads objects; nil without a bucket.
	pieces *pieces

	// fleet is what was opened and registered; nil before.
	fleet atomic.Pointer[fleet]
	// keys are the public keys that session tokens are signed with.
	keys atomic.Pointer[map[uint64]ed25519.PublicKey]
	// revoked are the certificates that are not taken any more.
	revoked atomic.Pointer[transport.Revocations]
	// capabilities verifies those that callers show, with the same keys.
	capabilities *capability.Verifier
	// applied is the index of the state that the last heartbeat was answered
	// under.
	applied atomic.Uint64
	beaten  atomic.Bool // the last heartbeat was answered
	// memoryLevel: the metadata keeps watch over chunks that are in memory alone.
	memoryLevel atomic.Bool
	// prober tries other servers; watches: this one is to ask an idle bucket often.
	prober  *prober
	watches atomic.Bool
	// newestIncarnation is the newest incarnation of the metadata that this server has heard of.
	newestIncarnation atomic.Pointer[moraine.MarkedIncarnation]
	// seen is the memory's state when Metrics last saw it; the heartbeat's alone.
	seen  mem.Stats
	ready chan struct{}
	// changes are devices that come and go; ended is closed when Run returns.
	changes chan *change
	ended   chan struct{}
	// closeWait is closeWait, but in tests.
	closeWait time.Duration
}

var _ transport.ChunkService = (*Server)(nil)

// New checks cfg and makes a server; it opens nothing and starts nothing.
func New(cfg Config, deps Deps) (*Server, error) {
	cfg.setDefaults()
	deps.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if deps.Meta == nil {
		return nil, &moraine.Error{Op: "chunkserver.New", Kind: moraine.InvalidArgument, Err: errors.New("no metadata service was given")}
	}
	s := &Server{cfg: cfg, deps: deps, ready: make(chan struct{}), changes: make(chan *change), ended: make(chan struct{}), closeWait: closeWait, prober: newProber()}
	s.capabilities = capability.NewVerifier(s.Key)
	if deps.Bucket != nil {
		s.pieces = newPieces(cfg.PieceBytes, cfg.Bucket, deps, s.keptKey)
	}
	return s, nil
}

// keptKey is the key at which the cluster keeps an object whose own key was needed.
func (s *Server) keptKey(id uint64) string {
	f := s.fleet.Load()
	_, prefix, err := object.ParseURL(s.cfg.Bucket)
	if f == nil || err != nil {
		return ""
	}
	return objectkey.Kept(prefix, f.cluster[:], id)
}

// Ready is closed when the devices are registered and the server takes requests.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run opens the devices and serves until ctx ends; it returns after all that it
// began has ended and the devices are closed. It fails where a device cannot be
// used (WrongCluster, NewerFormat, Corrupt, Busy), or a directory of a host that is new
// holds none (NotFound): nothing is damaged then. Where
// there is no device at all in a directory of a host that is known, or a disk
// answers with I/O errors, it serves without, and fails if that leaves none.
func (s *Server) Run(ctx context.Context) error {
	defer close(s.ended)
	memory, err := mem.Open(mem.Config{Arena: mem.ArenaConfig{Bytes: s.cfg.MemoryBytes, Path: s.cfg.MemoryPath, Node: s.cfg.MemoryNode,
		Prefault: s.cfg.Prefault, Wait: waitFor("memory of chunks", s.deps)}, DirtyBytes: s.cfg.DirtyBytes}, mem.Deps{Clock: s.deps.Clock, Log: s.deps.Log})
	if err != nil {
		return err
	}
	defer memory.Close()
	f, err := s.openDevices(ctx, memory)
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil // it waited for the service
		}
		return err
	}
	defer func() { f.close(s.deps.Log) }()
	if err := s.registerUntil(ctx, f); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	s.fleet.Store(f)
	// Requests that are under way when Run ends meet closed devices, which
	// answer Unavailable.
	defer func() { f = s.fleet.Swap(nil) }()
	g, ctx := errgroup.WithContext(ctx)
	if s.pieces != nil {
		ended := s.pieces.start(ctx)
		defer ended()
		g.Go(func() error { s.pieces.askStages(ctx); return nil })
		g.Go(func() error { s.pieces.checkObjects(ctx); return nil })
	}
	for _, d := range f.devices {
		d.tier.Admit()
	}
	close(s.ready)
	for _, d := range f.devices {
		g.Go(func() error { return s.tend(ctx, d) })
	}
	if b, ok := s.deps.Bucket.(watchedBucket); ok {
		g.Go(func() error { s.watchBucket(ctx, b); return nil })
	}
	if s.deps.Probe != nil {
		g.Go(func() error { s.probes(ctx); return nil })
	}
	g.Go(func() error { s.heartbeats(ctx, g); return nil })
	return g.Wait()
}

// Key finds the public key of session tokens. It is given to the transport's
// server, which asks it for each connection.
func (s *Server) Key(id uint64) ed25519.PublicKey {
	if keys := s.keys.Load(); keys != nil {
		return (*keys)[id]
	}
	return nil
}

// Revoked reports whether a peer's certificate was revoked, as the last heartbeat was
// told. It is given to the transport's server.
func (s *Server) Revoked(p *transport.Peer) bool { return s.revoked.Load().Has(p) }

// Healthy returns why the server cannot do its part, or nil: its devices are
// registered, one at least is in service, and the metadata service answers.
func (s *Server) Healthy() error {
	f := s.fleet.Load()
	if f == nil {
		return &moraine.Error{Op: "chunkserver", Ref: s.cfg.Node, Kind: moraine.Unavailable, Err: errors.New("the devices are not registered yet")}
	}
	if !s.beaten.Load() {
		return &moraine.Error{Op: "chunkserver", Ref: s.cfg.Node, Kind: moraine.Unavailable, Err: errors.New("the metadata service did not answer the last heartbeat")}
	}
	for _, d := range f.devices {
		if d.tier.Err() == nil {
			return nil
		}
	}
	return &moraine.Error{Op: "chunkserver", Ref: s.cfg.Node, Kind: moraine.IOError, Err: errors.New("every device is out of service")}
}

// device finds a registered device, for a request. One that is not here is
// Unavailable, and never NotFound: that a device has moved to another host, or
// was left out at a start, says nothing of its chunks.
func (s *Server) device(op string, id uint32) (*device, error) {
	f := s.fleet.Load()
	if f == nil {
		return nil, &moraine.Error{Op: op, Ref: s.cfg.Node, Kind: moraine.Unavailable, Err: errors.New("the devices are not registered yet")}
	}
	if d := f.byID[moraine.DeviceID(id)]; d != nil {
		return d, nil
	}
	return nil, &moraine.Error{Op: op, Ref: s.cfg.Node, Kind: moraine.Unavailable, Err: fmt.Errorf("device %d is not here", id)}
}
