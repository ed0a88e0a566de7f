// Package chunkserver is the service that keeps chunks on one host. It admits
// requests, verifies received bytes, and stores them on its devices (package
// tiers/disk). While memory suffices it also caches them (package tiers/mem). It
// serves and verifies reads, and reports its chunks to the metadata service.
//
// It does not decide which chunks exist. Clients put chunks where the metadata
// service placed them, and the chunkserver deletes a chunk only on request of the
// metadata service. It connects to other servers only to probe whether they are
// reachable (probe.go), and sends them nothing.
//
// One path through it, a put: PutChunk (put.go) checks the caller's token, its
// capability and the device. It takes an aligned buffer of the arena, for which
// cached chunks are evicted. If memory is short it waits, which delays only that
// connection. It reads the payload into the buffer, and checksums each piece while
// it is in the processor's cache. It compares the combined checksum with the one
// that the client computed at its first copy. The device writes the buffer in place
// and syncs. The chunk stays cached, and the answer has the level reached and the
// device's boot epoch.
//
// Run does the rest. It opens the devices, registers them, sends a heartbeat
// each second, and carries out the deletions in the answers. It periodically
// reports all chunks of each device. SetDevices changes the set of devices
// meanwhile.
//
// The Server itself serves requests. Its parts are metaState (what the metadata
// service reported), permits (who may do what), opener, registrar, heart (the
// heartbeats), and deviceChanges (SetDevices). Others are prober, bucketWatch,
// suspects (chunks that clients reported as bad) and pieces. For each device,
// deviceTasks runs a reporter, a scrubber, a settler and a healthReader.
//
// What parts share is atomic (Server.fleet and metaState). The rest belongs to one
// goroutine, or has a lock in its part (prober, pieces).
package chunkserver

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/objectkey"
	"github.com/morainefs/moraine/tiers/mem"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability"
	"golang.org/x/sync/errgroup"
)

// Server is one chunkserver. It implements transport.ChunkService: its methods check
// and serve requests, and its parts do the rest.
type Server struct {
	cfg  Config
	deps Deps
	// fleet is the opened and registered devices; nil before. Run sets it, and then
	// the registrar.
	fleet atomic.Pointer[fleet]
	meta  *metaState
	// pieces reads objects; nil without a bucket.
	pieces    *pieces
	permits   *permits
	opener    *opener
	tasks     *deviceTasks
	registrar *registrar
	changes   *deviceChanges
	prober    *prober
	bucket    *bucketWatch
	suspects  *suspects
	heart     *heart
	ready     chan struct{}
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
		return nil, &moraine.Error{Op: "chunkserver.New", Kind: moraine.InvalidArgument, Err: errors.New("metadata service is missing: set Deps.Meta")}
	}
	s := &Server{cfg: cfg, deps: deps, ready: make(chan struct{})}
	s.assemble()
	return s, nil
}

// assemble makes the parts of the server.
func (s *Server) assemble() {
	cfg, deps := &s.cfg, &s.deps
	if deps.Bucket != nil {
		s.pieces = newPieces(cfg.PieceBytes, cfg.Bucket, *deps, s.keptKey)
	}
	s.meta = &metaState{cfg: cfg, deps: deps, fleet: &s.fleet}
	s.permits = &permits{cfg: cfg, deps: deps, meta: s.meta, fleet: &s.fleet, verifier: capability.NewVerifier(s.meta.key)}
	s.opener = &opener{cfg: cfg, deps: deps, meta: s.meta}
	s.changes = &deviceChanges{cfg: cfg, deps: deps, fleet: &s.fleet, opener: s.opener, queue: make(chan *change), ended: make(chan struct{}), closeWait: closeWait}
	deletes := &deleter{deps: deps}
	s.tasks = &deviceTasks{cfg: cfg, deps: deps, meta: s.meta, fleet: &s.fleet, deleter: deletes}
	s.registrar = &registrar{cfg: cfg, deps: deps, meta: s.meta, fleet: &s.fleet, opener: s.opener, tasks: s.tasks, changes: s.changes}
	s.prober = newProber(deps)
	s.suspects = newSuspects(cfg, deps, s.meta, &s.fleet, s.tasks)
	s.bucket = &bucketWatch{clock: deps.Clock}
	s.bucket.bucket, _ = deps.Bucket.(watchedBucket)
	s.heart = &heart{cfg: cfg, deps: deps, meta: s.meta, fleet: &s.fleet, deleter: deletes, registrar: s.registrar, prober: s.prober,
		bucket: s.bucket, suspects: s.suspects, pieces: s.pieces}
}

// keptKey is the key at which the cluster keeps an object after another object
// needed its own key.
func (s *Server) keptKey(id uint64) string {
	f := s.fleet.Load()
	_, prefix, err := object.ParseURL(s.cfg.Bucket)
	if f == nil || err != nil {
		return ""
	}
	return objectkey.Kept(prefix, f.cluster[:], id)
}

// Ready is closed when the devices are registered and the server accepts requests.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run opens the devices and serves until ctx ends. It returns after everything
// that it started has ended and the devices are closed. It fails if a device
// cannot be used (WrongCluster, NewerFormat, Corrupt, Busy), or if a directory
// of a new host has none (NotFound). It damages nothing. If a directory of a
// known host holds no device, or a disk returns I/O errors, Run serves without
// that device. It fails if none is left.
func (s *Server) Run(ctx context.Context) error {
	defer close(s.changes.ended)
	memory, err := mem.Open(mem.Config{Arena: mem.ArenaConfig{Bytes: s.cfg.MemoryBytes, Path: s.cfg.MemoryPath, Node: s.cfg.MemoryNode,
		Prefault: s.cfg.Prefault, Wait: waitFor("memory of chunks", s.deps)}, DirtyBytes: s.cfg.DirtyBytes}, mem.Deps{Clock: s.deps.Clock, Log: s.deps.Log})
	if err != nil {
		return err
	}
	defer memory.Close()
	f, err := s.opener.openAll(ctx, memory)
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil // it waited for the metadata service
		}
		return err
	}
	defer func() { f.close(s.deps.Log) }()
	if err := s.registrar.until(ctx, f); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	s.fleet.Store(f)
	// Requests that still run when Run ends find closed devices, which return
	// Unavailable.
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
		g.Go(func() error { return s.tasks.tend(ctx, d) })
	}
	if s.bucket.bucket != nil {
		g.Go(func() error { s.bucket.run(ctx); return nil })
	}
	if s.deps.Probe != nil {
		g.Go(func() error { s.prober.run(ctx); return nil })
	}
	g.Go(func() error { s.suspects.run(ctx); return nil })
	g.Go(func() error { s.heart.run(ctx, g); return nil })
	return g.Wait()
}

// Key finds the public key of session tokens. The transport's server calls it for
// each connection.
func (s *Server) Key(id uint64) ed25519.PublicKey { return s.meta.key(id) }

// NewestIncarnation is the newest incarnation of the metadata that this server
// received; number 0 before the first.
func (s *Server) NewestIncarnation() moraine.MarkedIncarnation { return s.meta.newest() }

// Incarnation is the number of NewestIncarnation. The transport's server gets it,
// like Key.
func (s *Server) Incarnation() moraine.Incarnation { return s.meta.newest().Number }

// Revoked reports whether a peer's certificate was revoked, by the last heartbeat's
// answer. The transport's server calls it.
func (s *Server) Revoked(p *transport.Peer) bool { return s.meta.revoked.Load().Has(p) }

// SetDevices makes the running server use the given devices and no others. A new
// directory must already be a device, as at the start of a known host. A device
// that is not listed, or whose directory now holds another disk, is dropped and
// closed, so that its file system can be unmounted.
//
// A device that counts is not dropped: it must be out or retired. Drained and empty
// is not enough, since it may hold chunks whose commit is still to come. Nor is an
// unusable device added.
//
// The error names each device that is unchanged or not closed yet, and the reason;
// the other devices have changed. SetDevices returns when the metadata service
// knows the change or has refused it, or when ctx has ended: then the change
// continues. Only one call may run at a time.
func (s *Server) SetDevices(ctx context.Context, want []DeviceConfig) error {
	return s.changes.set(ctx, want)
}

// Healthy returns why the server cannot do its work, or nil. Nil means that its
// devices are registered, at least one is in service, and the metadata service
// answers.
func (s *Server) Healthy() error {
	f := s.fleet.Load()
	if f == nil {
		return &moraine.Error{Op: "chunkserver", Ref: s.cfg.Node, Kind: moraine.Unavailable, Err: errors.New("devices are not registered yet")}
	}
	if !s.heart.beaten.Load() {
		return &moraine.Error{Op: "chunkserver", Ref: s.cfg.Node, Kind: moraine.Unavailable, Err: errors.New("metadata service did not answer the last heartbeat")}
	}
	for _, d := range f.devices {
		if d.tier.Err() == nil {
			return nil
		}
	}
	return &moraine.Error{Op: "chunkserver", Ref: s.cfg.Node, Kind: moraine.IOError, Err: errors.New("all devices are out of service")}
}

// device finds a registered device for a request. A missing device is
// Unavailable, never NotFound. Its chunks may still exist: the device may have
// moved to another host, or was left out at a start.
func (s *Server) device(op string, id uint32) (*device, error) {
	f := s.fleet.Load()
	if f == nil {
		return nil, &moraine.Error{Op: op, Ref: s.cfg.Node, Kind: moraine.Unavailable, Err: errors.New("devices are not registered yet: try again later")}
	}
	if d := f.byID[moraine.DeviceID(id)]; d != nil {
		return d, nil
	}
	return nil, &moraine.Error{Op: op, Ref: s.cfg.Node, Kind: moraine.Unavailable, Err: fmt.Errorf("device %d is not on this host", id)}
}
