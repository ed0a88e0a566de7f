package chunkserver_test

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/capability/capabilitytest"
	"github.com/morainefs/moraine/transport/wire"
)

var cluster = moraine.UUID{0xc1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

// fakeMeta is the part of the metadata service that a chunkserver uses, by its
// contract. Numbers of devices never change. Each registration of a known device is
// a new boot. A deletion is requested until it is acknowledged.
type fakeMeta struct {
	mu       sync.Mutex // guards the fields below
	changed  *sync.Cond // signalled after each request
	cluster  moraine.UUID
	hosts    []*wire.Host // registered
	ids      map[moraine.UUID]uint32
	epochs   map[uint32]uint64
	deaths   map[uint32][]*wire.Deletion // requested deletions, by device
	acked    []*wire.Deletion
	beats    []*wire.Heartbeat
	reports  map[uint32][]*wire.ReportChunks // of the running pass, by device
	passes   map[uint32][][]*wire.ReportChunks
	raised   uint64 // how far the incarnation of the metadata is past the first
	mark     []byte // of the incarnation
	unknown  bool   // heartbeats are answered: register
	applied  uint64
	requests int
	memory   []*wire.SettledChunk // recorded as in memory, in order
	// recorded is how many ever were. Version of each in memory is its number.
	recorded uint32
	settled  []*wire.SettledChunk
	looked   int // how often the list was read
	listed   int // how many of its rows were
	// write and gone are what the list says of steps with deferred chunks. dead are stripes that no record
	// names.
	write, gone, dead []uint64
	scrubNow          bool
	suspects          []*wire.SuspectChunk // the next heartbeat's answer has them
	objects           map[uint64]*wire.ObjectReply
	staged            []uint64          // inodes for which staging was requested
	tenants           map[uint64]uint32 // of inodes
	found             []*wire.ObjectCheck
	compare           []*wire.ObjectToCheck // the next heartbeat requests it
	host              *wire.Host
	targets           []*wire.ProbeTarget // returned with heartbeats
	// fault is called for each request before it is carried out, and again after it
	// with its answer. If it returns an error, the caller gets that instead.
	fault func(req *wire.MetaRequest, done bool) error
	// lost is how many more registrations are never answered. beatsAfterLoss counts
	// the heartbeats after one.
	lost, beatsAfterLoss int
	lossSeen             bool
	// held, if set, blocks registrations until it is closed, whatever their callers
	// do.
	held    chan struct{}
	holding int // blocked registrations
}

func newFakeMeta() *fakeMeta {
	f := &fakeMeta{cluster: cluster, ids: map[moraine.UUID]uint32{}, epochs: map[uint32]uint64{}, applied: 10,
		deaths: map[uint32][]*wire.Deletion{}, reports: map[uint32][]*wire.ReportChunks{},
		passes: map[uint32][][]*wire.ReportChunks{}}
	f.changed = sync.NewCond(&f.mu)
	return f
}

// Do implements transport.Metadata.
func (f *fakeMeta) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if f.loses(req) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	f.hold(req)
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.changed.Broadcast()
	f.requests++
	f.applied++
	if _, err := proto.Marshal(req); err != nil { // it could not be sent
		return nil, &moraine.Error{Op: "transport.encode", Kind: moraine.InvalidArgument, Err: err}
	}
	req = proto.Clone(req).(*wire.MetaRequest)
	if f.fault != nil {
		if err := f.fault(req, false); err != nil {
			return nil, err
		}
	}
	resp, err := f.answer(req)
	if f.fault != nil && err == nil {
		err = f.fault(req, true)
	}
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if resp.GetHeartbeat() != nil { // its caller has what is requested once
		f.compare, f.suspects = nil, nil
	}
	return resp, nil
}

// hold blocks a registration until held is closed.
func (f *fakeMeta) hold(req *wire.MetaRequest) {
	f.mu.Lock()
	held := f.held
	_, ok := req.Op.(*wire.MetaRequest_RegisterHost)
	if ok = ok && held != nil; ok {
		f.holding++
	}
	f.mu.Unlock()
	if ok {
		<-held
	}
}

// loses reports whether a request is never answered.
func (f *fakeMeta) loses(req *wire.MetaRequest) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch req.Op.(type) {
	case *wire.MetaRequest_RegisterHost:
		if f.lost > 0 {
			f.lost, f.lossSeen = f.lost-1, true
			return true
		}
	case *wire.MetaRequest_Heartbeat:
		if f.lossSeen {
			f.beatsAfterLoss++
		}
	}
	return false
}

func (f *fakeMeta) answer(req *wire.MetaRequest) (*wire.MetaResponse, error) {
	switch op := req.Op.(type) {
	case *wire.MetaRequest_GetCluster:
		return &wire.MetaResponse{Result: &wire.MetaResponse_Cluster{Cluster: &wire.ClusterReply{Cluster: f.cluster[:],
			Topology: &wire.Topology{Hosts: f.hosts}}}}, nil
	case *wire.MetaRequest_RegisterHost:
		return f.register(op.RegisterHost), nil
	case *wire.MetaRequest_Heartbeat:
		return f.heartbeat(op.Heartbeat), nil
	case *wire.MetaRequest_ListMemory:
		f.looked++
		return f.listMemory(op.ListMemory), nil
	case *wire.MetaRequest_SettleChunks:
		return f.settle(op.SettleChunks)
	case *wire.MetaRequest_DeletedChunks:
		f.forget(op.DeletedChunks.Deleted)
		return &wire.MetaResponse{Result: &wire.MetaResponse_Done{Done: &wire.Done{}}}, nil
	case *wire.MetaRequest_GetObject:
		if o := f.objects[op.GetObject.Object]; o != nil {
			return &wire.MetaResponse{Result: &wire.MetaResponse_Object{Object: o}}, nil
		}
		return nil, &moraine.Error{Op: "fake", Kind: moraine.NotFound}
	case *wire.MetaRequest_GetAttr:
		tenant, ok := f.tenants[op.GetAttr.Inode]
		if !ok {
			return nil, &moraine.Error{Op: "fake", Kind: moraine.NotFound}
		}
		return &wire.MetaResponse{Result: &wire.MetaResponse_Entry{Entry: &wire.EntryReply{Attr: &wire.Attr{
			Inode: op.GetAttr.Inode, Tenant: tenant}}}}, nil
	case *wire.MetaRequest_QueueMove:
		f.staged = append(f.staged, op.QueueMove.Inodes...)
		return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: &wire.JobsReply{}}}, nil
	case *wire.MetaRequest_ReportObjects:
		f.found = append(f.found, op.ReportObjects.Checks...)
		return &wire.MetaResponse{Result: &wire.MetaResponse_Done{Done: &wire.Done{}}}, nil
	case *wire.MetaRequest_ReportChunks:
		r := op.ReportChunks
		f.reports[r.Device] = append(f.reports[r.Device], r)
		if r.To == 0 {
			f.passes[r.Device] = append(f.passes[r.Device], f.reports[r.Device])
			f.reports[r.Device] = nil
		}
		return &wire.MetaResponse{Result: &wire.MetaResponse_ReportChunks{ReportChunks: &wire.ReportChunksReply{}}}, nil
	}
	return nil, &moraine.Error{Op: "fake", Kind: moraine.Unimplemented, Err: fmt.Errorf("%T", req.Op)}
}

func (f *fakeMeta) register(r *wire.RegisterHost) *wire.MetaResponse {
	f.host, f.unknown = r.Host, false // a heartbeat's answer may arrive too late for its sender
	reply := &wire.RegisterHostReply{Cluster: f.cluster[:], Incarnation: 1 + f.raised, Mark: f.mark, Keys: []*wire.SigningKey{capabilitytest.Key()}}
	if !slices.ContainsFunc(f.hosts, func(h *wire.Host) bool { return h.Id == r.Host.Id }) {
		f.hosts = append(f.hosts, r.Host)
	}
	for _, d := range r.Host.Devices {
		u := moraine.UUID(d.Uuid)
		if f.ids[u] == 0 {
			f.ids[u] = uint32(len(f.ids) + 1)
		}
		id := f.ids[u]
		f.epochs[id]++
		reply.Devices = append(reply.Devices, &wire.Device{Id: id, Uuid: d.Uuid, Epoch: f.epochs[id]})
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_RegisterHost{RegisterHost: reply}}
}

func (f *fakeMeta) heartbeat(h *wire.Heartbeat) *wire.MetaResponse {
	f.beats = append(f.beats, h)
	reply := &wire.HeartbeatReply{Probe: f.targets, Applied: f.applied, Register: f.unknown, Incarnation: 1 + f.raised, Mark: f.mark, Keys: []*wire.SigningKey{capabilitytest.Key()}}
	reply.CheckObjects, reply.Verify = f.compare, f.suspects
	for _, d := range h.Devices {
		if len(f.memory) > 0 {
			reply.Memory = append(reply.Memory, d.Id)
		}
		if f.scrubNow {
			reply.Scrub = append(reply.Scrub, d.Id)
		}
		for _, del := range f.deaths[d.Id] {
			if len(reply.Deletions) < int(h.MaxDeletions) {
				reply.Deletions = append(reply.Deletions, del)
			}
		}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Heartbeat{Heartbeat: reply}}
}

// forget removes acknowledged deletions from the list.
func (f *fakeMeta) forget(done []*wire.Deletion) {
	f.acked = append(f.acked, done...)
	for _, d := range done {
		list := f.deaths[d.Device]
		for i := range list {
			if proto.Equal(list[i], d) {
				f.deaths[d.Device] = append(list[:i:i], list[i+1:]...)
				break
			}
		}
	}
}

// wait returns when what becomes true; it checks after each request.
func (f *fakeMeta) wait(ctx context.Context, what func() bool) bool {
	stop := context.AfterFunc(ctx, f.changed.Broadcast)
	defer stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	for !what() {
		if ctx.Err() != nil {
			return false
		}
		f.changed.Wait()
	}
	return true
}

// lastBeat returns the first n devices of the last heartbeat.
func (f *fakeMeta) lastBeat(n int) []*wire.Device {
	devices := make([]*wire.Device, n)
	if len(f.beats) > 0 {
		copy(devices, f.beats[len(f.beats)-1].Devices)
	}
	return devices
}

// lastHost returns the last registration.
func (f *fakeMeta) lastHost() *wire.Host {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.host
}

// set changes the fake under its lock.
func (f *fakeMeta) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// payload is bytes as a connection would deliver them.
type payload struct {
	data  []byte
	err   error // returned during the read
	taken int   // calls of ReadInto and Discard
}

func (p *payload) Len() int { return len(p.data) }

func (p *payload) ReadInto(dst []byte, each func([]byte)) error {
	p.taken++
	if p.err != nil {
		return p.err
	}
	for off := 0; off < len(p.data); off += 256 << 10 {
		n := copy(dst[off:], p.data[off:min(off+256<<10, len(p.data))])
		if each != nil {
			each(dst[off : off+n])
		}
	}
	return nil
}

func (p *payload) Discard() error {
	p.taken++
	return nil
}
