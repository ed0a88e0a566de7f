package mover_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/objectkey"
	"github.com/morainefs/moraine/mover"
	"github.com/morainefs/moraine/tiers/object/objecttest"
	"github.com/morainefs/moraine/transport/wire"
)

// ledger is the part of the metadata service that moves objects, by its contract in
// object.proto, for one file and one job at a time. It has leases with epochs, one intent for
// each job, and records. It is strict: a request that the contract forbids fails the test.
type ledger struct {
	t      testing.TB
	bucket *objecttest.Memory
	// tags, if not nil, changes the tag of each upload on its way to the bucket.
	tags  func(tag string) string
	pace  func(ctx context.Context, n int64) error // of started movers; nil: none
	clock clock.Clock                              // theirs; nil: the bubble's

	mu      sync.Mutex // guards the fields below
	hook    func(holder, op string) (after func(error) error, err error)
	content []byte
	attr    *wire.Attr
	path    string
	cluster []byte
	keep    bool // the object at the key must be kept
	kind    wire.JobKind
	kinds   []wire.JobKind // next jobs
	cleanup bool
	// overwrite is the policy for foreign objects.
	overwrite bool
	epoch     uint64
	holder    string
	until     time.Time
	intent    *wire.ObjectIntent
	objects   map[uint64]*wire.Object
	sums      []uint32
	deleted   []uint64
	evicted   bool
	finished  []string     // errors of ended jobs
	failure   moraine.Kind // of the last one
	told      []*wire.RenewJob
}

const (
	ledgerLease = 15 * time.Second
	ledgerJob   = 77
)

func newLedger(t testing.TB, content []byte) *ledger {
	return &ledger{t: t, bucket: objecttest.NewMemory(), content: content, path: "dir/file", cluster: []byte("cluster"), objects: map[uint64]*wire.Object{},
		attr: &wire.Attr{Inode: 9, Size: uint64(len(content)), Generation: 3, Uid: 1000, Gid: 100, Mode: 0o640, Mtime: 1_700_000_000_123456789}}
}

// queue makes a job pending.
func (l *ledger) queue(kind wire.JobKind) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kinds = append(l.kinds, kind)
}

func (l *ledger) key() string { return objectkey.Of(l.bucket.Prefix(), l.path) }

// onMeta calls hook with each request to the ledger.
func (l *ledger) onMeta(hook func(holder, op string) (after func(error) error, err error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hook = hook
}

// file returns the attributes of the ledger's file.
func (l *ledger) file() *wire.Attr {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.attr
}

// idle reports whether all jobs have ended.
func (l *ledger) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kind == 0 && len(l.kinds) == 0
}

// write gives the file other content.
func (l *ledger) write(content []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.content = content
	l.attr = proto.Clone(l.attr).(*wire.Attr)
	l.attr.Generation++
	l.attr.Clean = false
	l.attr.Size = uint64(len(content))
}

// seat is one holder's view of the ledger.
type seat struct {
	l    *ledger
	name string
}

// Meta implements mover.Service.
func (s *seat) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	var after func(error) error
	s.l.mu.Lock()
	hook := s.l.hook
	s.l.mu.Unlock()
	if hook != nil {
		var err error
		if after, err = hook(s.name, opOf(req)); err != nil {
			return nil, err
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if _, err := proto.Marshal(req); err != nil { // it would not leave the host
		return nil, &moraine.Error{Op: "transport.encode", Kind: moraine.InvalidArgument, Err: err}
	}
	resp, err := s.l.do(s.name, req)
	if after != nil {
		err = after(err)
	}
	if l := req.GetLeaseJobs(); l != nil && err == nil && len(resp.GetJobs().GetJobs()) == 0 {
		select { // a long poll
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

func kindErr(kind moraine.Kind, text string) error {
	return &moraine.Error{Op: "ledger", Kind: kind, Err: fmt.Errorf("%s", text)}
}

func done() *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Done{Done: &wire.Done{}}}
}

func (l *ledger) do(holder string, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_LeaseJobs:
		return l.lease(holder, op.LeaseJobs), nil
	case *wire.MetaRequest_RenewJob:
		if err := l.mine(holder, op.RenewJob.LeaseEpoch); err != nil {
			return nil, err
		}
		l.until = time.Now().Add(ledgerLease)
		l.told = append(l.told, op.RenewJob)
		return done(), nil
	case *wire.MetaRequest_FinishJob:
		if err := l.mine(holder, op.FinishJob.LeaseEpoch); err != nil {
			return nil, err
		}
		l.failure = moraine.Kind(op.FinishJob.Kind)
		l.finish(op.FinishJob.Error)
		return done(), nil
	case *wire.MetaRequest_BeginObject:
		return done(), l.begin(holder, op.BeginObject)
	case *wire.MetaRequest_EndObject:
		if err := l.mine(holder, op.EndObject.LeaseEpoch); err != nil {
			return nil, err
		}
		if l.intent.GetKind() == wire.IntentKind_INTENT_KIND_UPLOAD && l.bucket.Open() > 0 {
			l.t.Errorf("an intent ended while its upload is open")
		}
		l.intent = nil
		return done(), nil
	case *wire.MetaRequest_CommitFlush:
		return done(), l.commit(holder, op.CommitFlush)
	case *wire.MetaRequest_MoveObject:
		if err := l.mine(holder, op.MoveObject.LeaseEpoch); err != nil {
			return nil, err
		}
		o := l.objects[op.MoveObject.Object.Id]
		if l.intent.GetKind() != wire.IntentKind_INTENT_KIND_COPY || l.intent.Key != op.MoveObject.Object.Key || o == nil {
			l.t.Errorf("moved without an intent to copy")
		}
		if op.MoveObject.Object.Verified == 0 {
			l.t.Errorf("a copy that nobody compared is recorded")
		}
		o.Key, o.Etag, o.Kept = op.MoveObject.Object.Key, op.MoveObject.Object.Etag, true
		l.keep, l.intent = false, nil
		return done(), nil
	case *wire.MetaRequest_CommitEvict:
		if err := l.mine(holder, op.CommitEvict.LeaseEpoch); err != nil {
			return nil, err
		}
		if op.CommitEvict.Generation != l.attr.Generation || op.CommitEvict.Object != l.attr.Object {
			return nil, kindErr(moraine.Stale, "other content")
		}
		l.evicted = true
		return done(), nil
	case *wire.MetaRequest_DeletedObject:
		if err := l.mine(holder, op.DeletedObject.LeaseEpoch); err != nil {
			return nil, err
		}
		if l.intent.GetKind() != wire.IntentKind_INTENT_KIND_DELETE {
			l.t.Errorf("deleted without an intent")
		}
		l.deleted = append(l.deleted, l.intent.GetObject())
		delete(l.objects, l.intent.GetObject())
		l.intent = nil
		return done(), nil
	}
	return nil, kindErr(moraine.Unimplemented, opOf(req))
}

// mine fences a request: its lease must be the current one, and not have ended.
func (l *ledger) mine(holder string, epoch uint64) error {
	if l.kind == 0 || epoch != l.epoch || holder != l.holder || time.Now().After(l.until) {
		return kindErr(moraine.Fenced, "the lease is another's")
	}
	return nil
}

func (l *ledger) lease(holder string, req *wire.LeaseJobs) *wire.MetaResponse {
	reply := &wire.JobsReply{LeaseMillis: uint64(ledgerLease.Milliseconds())}
	if l.kind == 0 && len(l.kinds) > 0 {
		l.kind, l.kinds = l.kinds[0], l.kinds[1:]
		l.holder, l.cleanup = "", false
	}
	free := l.holder == "" || time.Now().After(l.until)
	if l.kind != 0 && free && slices.Contains(req.Kinds, l.kind) {
		if req.Bucket != l.bucket.Name() || req.Prefix != l.bucket.Prefix() {
			l.t.Errorf("leased for bucket %q, prefix %q", req.Bucket, req.Prefix)
		}
		l.epoch++
		l.holder, l.until = holder, time.Now().Add(ledgerLease)
		reply.Jobs = []*wire.Job{{Id: ledgerJob, Kind: l.kind, LeaseEpoch: l.epoch, Inode: l.attr.Inode, Move: l.task()}}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: reply}}
}

func (l *ledger) task() *wire.MoveTask {
	t := &wire.MoveTask{Attr: l.attr, Path: l.path, Bucket: l.bucket.Name(), Key: l.key(), Intent: l.intent, Object: l.objects[l.attr.Object],
		Cleanup: l.cleanup, Overwrite: l.overwrite, Cluster: l.cluster}
	if l.keep {
		t.KeepFirst, t.KeepKey = true, objectkey.Kept(l.bucket.Prefix(), l.cluster, l.attr.Object)
	}
	return proto.Clone(t).(*wire.MoveTask)
}

// finish ends the job, or queues it for another try. It queues an overtaken flush again.
func (l *ledger) finish(text string) {
	if text != "" {
		l.finished = append(l.finished, text)
		l.holder = ""
		return
	}
	if l.intent != nil {
		l.t.Errorf("a job ended with the intent %v", l.intent)
	}
	stale := l.kind == wire.JobKind_JOB_KIND_FLUSH && !l.attr.Clean && !l.cleanup
	if stale {
		l.kinds = append([]wire.JobKind{l.kind}, l.kinds...)
	}
	l.kind, l.holder = 0, ""
}

func (l *ledger) begin(holder string, req *wire.BeginObject) error {
	if err := l.mine(holder, req.LeaseEpoch); err != nil {
		return err
	}
	in := req.Intent
	if in.LeaseEpoch != req.LeaseEpoch {
		l.t.Errorf("an intent of epoch %d under lease %d", in.LeaseEpoch, req.LeaseEpoch)
	}
	if in.Kind == wire.IntentKind_INTENT_KIND_UPLOAD {
		if l.keep {
			l.t.Errorf("the key was taken before its object was kept")
		}
		if in.Generation != l.attr.Generation {
			return kindErr(moraine.Stale, "other content")
		}
		if old := l.intent; old != nil && old.LeaseEpoch != in.LeaseEpoch {
			l.t.Errorf("an upload was begun before the former holder's was settled: %v", old)
		}
	}
	l.intent = proto.Clone(in).(*wire.ObjectIntent)
	return nil
}

func (l *ledger) commit(holder string, req *wire.CommitFlush) error {
	if err := l.mine(holder, req.LeaseEpoch); err != nil {
		return err
	}
	o, in := req.Object, l.intent
	if in == nil || !in.Completing || in.Size != o.Size || in.Crc != o.Crc || in.Key != o.Key || in.Generation != o.Generation {
		l.t.Errorf("committed %v under the intent %v", o, in)
		return kindErr(moraine.Conflict, "no intent")
	}
	l.sums = append(l.sums[:req.FirstSum], req.Sums...)
	if !req.Final {
		return nil
	}
	if o.Verified == 0 {
		l.t.Errorf("an object that nobody compared is recorded: %v", o)
	}
	data := l.bucket.Bytes(o.Key)
	if crc.Sum(data) != o.Crc || uint64(len(data)) != o.Size {
		l.t.Errorf("recorded %d bytes, CRC %08x; the bucket has %d, %08x", o.Size, o.Crc, len(data), crc.Sum(data))
	}
	for i, sum := range l.sums {
		piece := data[i*int(o.Piece) : min((i+1)*int(o.Piece), len(data))]
		if crc.Sum(piece) != sum {
			l.t.Errorf("piece %d has another sum", i)
		}
	}
	id := uint64(100 + len(l.objects) + len(l.deleted))
	o = proto.Clone(o).(*wire.Object)
	o.Id = id
	if old := l.objects[l.attr.Object]; old != nil && !old.Kept {
		delete(l.objects, old.Id)
	}
	l.objects[id] = o
	l.attr = proto.Clone(l.attr).(*wire.Attr)
	l.attr.Object = id
	l.attr.Clean = o.Generation == l.attr.Generation
	l.intent = nil
	return nil
}

// content is a generation of the ledger's file.
type content struct {
	data       []byte
	generation uint64
}

func (c *content) Size() int64                    { return int64(len(c.data)) }
func (c *content) Generation() moraine.Generation { return moraine.Generation(c.generation) }
func (c *content) Close() error                   { return nil }
func (c *content) ReadRange(ctx context.Context, dst []byte, off int64) error {
	copy(dst, c.data[off:])
	return ctx.Err()
}

func (l *ledger) open(context.Context, moraine.InodeID) (mover.Content, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &content{l.content, l.attr.Generation}, nil
}

// start runs a mover with a name until stop.
func (l *ledger) start(name string) (stop func()) {
	m, err := mover.New(mover.Config{}, mover.Deps{Service: &seat{l: l, name: name}, Stripes: struct{ mover.Stripes }{}, Bucket: tagged{l.bucket, l.tags}, Open: l.open, Pace: l.pace, Clock: l.clock,
		CheckStep: func(context.Context, client.StepKey) (ckpt.IndexFile, error) { return ckpt.IndexFile{}, nil }})
	require.NoError(l.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = m.Run(ctx)
	}()
	return func() { cancel(); <-ended }
}

// requireFlushed compares bucket and ledger with the file: its object is there, with these
// bytes, and nothing else.
func (l *ledger) requireFlushed(t *testing.T, keys ...string) {
	t.Helper()
	require.Zero(t, l.bucket.Open(), "unfinished uploads")
	require.ElementsMatch(t, append(keys, l.key()), l.bucket.Keys())
	l.mu.Lock()
	defer l.mu.Unlock()
	require.True(t, bytes.Equal(l.content, l.bucket.Bytes(l.key())), "the object's bytes")
	require.True(t, l.attr.Clean)
	require.Nil(t, l.intent)
	o := l.objects[l.attr.Object]
	require.Equal(t, l.key(), o.Key)
	info, err := l.bucket.Head(context.Background(), refOf(o.Key))
	require.NoError(t, err)
	require.Equal(t, info.ETag, o.Etag)
}
