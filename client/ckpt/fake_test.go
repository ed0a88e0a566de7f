package ckpt_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// fakeCluster is one client's view of a cluster in memory: files by inode, and the rules of
// checkpoints in their simplest form. The hooks before and after receive every request by name.
// They may fail it before it takes effect, or after (the reply is lost).
type fakeCluster struct {
	before, after func(op string) error
	// read receives every read of a file, and may fail it.
	read func(inode uint64, dst []byte) error

	mu    sync.Mutex
	next  uint64
	files map[uint64][]byte
	dirs  map[uint64]map[string]uint64
	runs  map[string]*fakeRun
	wake  chan struct{}
	// leases counts the read leases of each step.
	leases map[uint64]int
	// clean says that objects have all files.
	clean bool
	// evicted says that reads come from objects, and level is that of all files.
	evicted bool
	level   moraine.Level
	// withheld ranks are missing in the answer to a claim, and added is what the others are too great.
	withheld int
	added    uint32
}

type fakeRun struct {
	id      uint64
	attempt uint32
	launch  string
	steps   map[uint64]*fakeStep
	latest  *fakeStep
}

type fakeStep struct {
	step   *wire.Step
	parts  map[uint32]*wire.Part
	claims map[string]uint32
}

const rootDir = 1

func newFake() *fakeCluster {
	return &fakeCluster{next: 100, files: map[uint64][]byte{}, dirs: map[uint64]map[string]uint64{rootDir: {}},
		runs: map[string]*fakeRun{}, wake: make(chan struct{}), leases: map[uint64]int{},
		read: func(uint64, []byte) error { return nil }, before: func(string) error { return nil }, after: func(string) error { return nil }}
}

func fail(kind moraine.Kind, format string, args ...any) error {
	return &moraine.Error{Op: "fake", Kind: kind, Err: fmt.Errorf(format, args...)}
}

func (f *fakeCluster) id() uint64 { f.next++; return f.next }

func (f *fakeCluster) MkdirAll(ctx context.Context, path string) (moraine.InodeID, error) {
	return rootDir, nil
}

func (f *fakeCluster) Create(ctx context.Context, near moraine.InodeID) (ckpt.FileWriter, error) {
	if err := f.before("create"); err != nil {
		return nil, err
	}
	return &fakeWriter{f: f}, nil
}

type fakeWriter struct {
	f    *fakeCluster
	data []byte
}

func (w *fakeWriter) Write(p []byte) (int, error) {
	if err := w.f.before("write"); err != nil {
		return 0, err
	}
	w.data = append(w.data, p...)
	return len(p), nil
}

func (w *fakeWriter) Commit(ctx context.Context) (ckpt.CommittedResult, error) {
	if err := w.f.before("commit"); err != nil {
		return ckpt.CommittedResult{}, err
	}
	w.f.mu.Lock()
	id := w.f.id()
	w.f.files[id] = w.data
	w.f.mu.Unlock()
	if err := w.f.after("commit"); err != nil {
		return ckpt.CommittedResult{}, err
	}
	return ckpt.Committed(moraine.InodeID(id), w.data, 2, 0), nil
}

func (w *fakeWriter) Abort() {}

type fakeReader struct {
	f     *fakeCluster
	inode uint64
	data  []byte
}

func (f *fakeCluster) Open(ctx context.Context, inode moraine.InodeID) (ckpt.FileReader, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, ok := f.files[uint64(inode)]
	if !ok {
		return nil, fail(moraine.NotFound, "inode %s", inode)
	}
	return &fakeReader{f, uint64(inode), data}, nil
}

func (r *fakeReader) Size() int64  { return int64(len(r.data)) }
func (r *fakeReader) Close() error { return nil }
func (r *fakeReader) InObject(context.Context, int64, int64) (bool, error) {
	return r.f.evicted, nil
}
func (r *fakeReader) ReadRange(ctx context.Context, dst []byte, off int64) error {
	if off < 0 || off+int64(len(dst)) > int64(len(r.data)) {
		return fail(moraine.InvalidArgument, "read [%d, +%d) of %d", off, len(dst), len(r.data))
	}
	copy(dst, r.data[off:])
	return r.f.read(r.inode, dst)
}

func (f *fakeCluster) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	op := fmt.Sprintf("%T", req.Op)[len("*wire.MetaRequest_"):]
	if err := f.before(op); err != nil {
		return nil, err
	}
	resp, err := f.serve(ctx, req)
	if err == nil {
		err = f.after(op)
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

func (f *fakeCluster) serve(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if g := req.GetGetStep(); g != nil {
		return f.getStep(ctx, g)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { close(f.wake); f.wake = make(chan struct{}) }()
	switch op := req.Op.(type) {
	case *wire.MetaRequest_Lookup:
		id, ok := f.dirs[op.Lookup.Parent][op.Lookup.Name]
		if !ok {
			return nil, fail(moraine.NotFound, "%s", op.Lookup.Name)
		}
		return &wire.MetaResponse{Result: &wire.MetaResponse_Entry{Entry: &wire.EntryReply{Attr: &wire.Attr{Inode: id, Clean: f.clean, Evicted: f.evicted, Level: uint32(f.level)}}}}, nil
	case *wire.MetaRequest_Walk:
		return &wire.MetaResponse{Result: &wire.MetaResponse_Walk{Walk: &wire.WalkReply{Found: true, Attr: &wire.Attr{Inode: rootDir}}}}, nil
	case *wire.MetaRequest_OpenRun:
		return f.openRun(op.OpenRun)
	case *wire.MetaRequest_BeginStep:
		return f.begin(op.BeginStep)
	case *wire.MetaRequest_SealPart:
		return f.seal(op.SealPart)
	case *wire.MetaRequest_ClaimSlices:
		return f.claim(op.ClaimSlices)
	case *wire.MetaRequest_ListParts:
		return f.listParts(op.ListParts)
	case *wire.MetaRequest_AbortStep:
		f.abort(f.step(op.AbortStep.Key), op.AbortStep.Reason)
		return &wire.MetaResponse{Result: &wire.MetaResponse_Done{Done: &wire.Done{}}}, nil
	case *wire.MetaRequest_CommitStep:
		return f.commit(op.CommitStep)
	case *wire.MetaRequest_ResolveStep:
		return f.resolve(op.ResolveStep)
	case *wire.MetaRequest_LeaseStep:
		f.leases[op.LeaseStep.Key.Step]++
		return stepResp(f.step(op.LeaseStep.Key).step), nil
	case *wire.MetaRequest_ReleaseStep:
		f.leases[op.ReleaseStep.Key.Step]--
		return &wire.MetaResponse{Result: &wire.MetaResponse_Done{Done: &wire.Done{}}}, nil
	}
	return nil, fail(moraine.Unimplemented, "%T", req.Op)
}

// abort ends a step, naming the ranks that have not sealed.
func (f *fakeCluster) abort(s *fakeStep, reason string) {
	for rank := range s.step.World {
		if s.parts[rank] == nil {
			s.step.Missing = append(s.step.Missing, rank)
		}
	}
	s.step.State, s.step.Reason = wire.StepState_STEP_STATE_ABORTED, fmt.Sprintf("%s; missing: %v", reason, s.step.Missing)
}

func (f *fakeCluster) run(id uint64) *fakeRun {
	for _, r := range f.runs {
		if r.id == id {
			return r
		}
	}
	return nil
}

func (f *fakeCluster) step(k *wire.StepKey) *fakeStep { return f.run(k.Run).steps[k.Step] }

func (f *fakeCluster) openRun(op *wire.OpenRun) (*wire.MetaResponse, error) {
	r := f.runs[op.Name]
	if r == nil {
		r = &fakeRun{id: f.id(), steps: map[uint64]*fakeStep{}}
		f.runs[op.Name] = r
	}
	if !op.ReadOnly && r.launch != op.Launch {
		r.launch, r.attempt = op.Launch, r.attempt+1
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Run{Run: &wire.RunReply{Run: &wire.Run{Id: r.id, Attempt: r.attempt}, Attempt: r.attempt}}}, nil
}

func stepResp(s *wire.Step) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Step{Step: &wire.StepReply{Step: proto.Clone(s).(*wire.Step)}}}
}

func (f *fakeCluster) begin(op *wire.BeginStep) (*wire.MetaResponse, error) {
	r := f.run(op.Key.Run)
	if op.Key.Attempt != r.attempt {
		return nil, fail(moraine.Fenced, "attempt %d; the present one is %d", op.Key.Attempt, r.attempt)
	}
	s := r.steps[op.Key.Step]
	if s == nil {
		s = &fakeStep{parts: map[uint32]*wire.Part{}, claims: map[string]uint32{}, step: &wire.Step{Key: op.Key, World: op.World, Dir: f.id(), State: wire.StepState_STEP_STATE_OPEN}}
		f.dirs[s.step.Dir] = map[string]uint64{}
		r.steps[op.Key.Step] = s
	}
	return stepResp(s.step), nil
}

func (f *fakeCluster) seal(op *wire.SealPart) (*wire.MetaResponse, error) {
	s := f.step(op.Key)
	if s.step.State == wire.StepState_STEP_STATE_ABORTED {
		return nil, fail(moraine.Aborted, "%s", s.step.Reason)
	}
	if s.parts[op.Rank] != nil {
		return nil, fail(moraine.Conflict, "rank %d has already sealed another part", op.Rank)
	}
	s.parts[op.Rank] = &wire.Part{Rank: op.Rank, Digest: op.Digest, Files: op.Files}
	for _, p := range op.Files {
		f.dirs[s.step.Dir][p.Name] = p.Inode
	}
	if s.step.Sealed++; s.step.Sealed == s.step.World {
		s.step.State = wire.StepState_STEP_STATE_SEALED
	}
	return stepResp(s.step), nil
}

// claim answers which rank was the first with each group.
func (f *fakeCluster) claim(op *wire.ClaimSlices) (*wire.MetaResponse, error) {
	s, reply := f.step(op.Key), &wire.ClaimsReply{}
	for _, g := range op.Groups[f.withheld:] {
		if _, taken := s.claims[string(g)]; !taken {
			s.claims[string(g)] = op.Rank
		}
		reply.Ranks = append(reply.Ranks, s.claims[string(g)]+f.added)
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Claims{Claims: reply}}, nil
}

func (f *fakeCluster) listParts(op *wire.ListParts) (*wire.MetaResponse, error) {
	reply := &wire.PartsReply{}
	for rank := op.After; rank < f.step(op.Key).step.World; rank++ {
		if p := f.step(op.Key).parts[rank]; p != nil {
			if len(reply.Parts) == 2 || len(reply.Parts) == int(op.Limit) {
				reply.More = true
				break
			}
			reply.Parts = append(reply.Parts, p)
		}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Parts{Parts: reply}}, nil
}

func (f *fakeCluster) commit(op *wire.CommitStep) (*wire.MetaResponse, error) {
	s := f.step(op.Key)
	if op.Error != "" {
		s.step.State, s.step.Reason = wire.StepState_STEP_STATE_ABORTED, op.Error
		return stepResp(s.step), nil
	}
	h := sha256.New()
	for rank := range s.step.World {
		h.Write(s.parts[rank].Digest)
	}
	whole := sha256.Sum256(h.Sum(nil)) // of the single block of 1,024 ranks
	s.step.State, s.step.Level, s.step.Digest = wire.StepState_STEP_STATE_COMMITTED, uint32(moraine.NVMe), whole[:]
	f.dirs[s.step.Dir][op.Index.Name] = op.Index.Inode
	f.run(op.Key.Run).latest = s
	return stepResp(s.step), nil
}

func (f *fakeCluster) resolve(op *wire.ResolveStep) (*wire.MetaResponse, error) {
	r := f.run(op.Run)
	s := r.latest
	switch {
	case op.Exact:
		s = r.steps[op.Step]
	case op.Before != nil:
		s = nil
		for n, other := range r.steps {
			if n < op.Before.Step && (s == nil || n > s.step.Key.Step) {
				s = other
			}
		}
	}
	if s == nil || s.step.State != wire.StepState_STEP_STATE_COMMITTED {
		return nil, fail(moraine.NotFound, "no step")
	}
	return stepResp(s.step), nil
}

func (f *fakeCluster) getStep(ctx context.Context, op *wire.GetStep) (*wire.MetaResponse, error) {
	deadline := time.After(time.Duration(op.WaitMillis) * time.Millisecond)
	for {
		f.mu.Lock()
		s, wake := f.step(op.Key), f.wake
		var step *wire.Step
		if s != nil {
			step = proto.Clone(s.step).(*wire.Step)
		}
		f.mu.Unlock()
		switch {
		case step == nil:
			return nil, fail(moraine.NotFound, "step %d", op.Key.Step)
		case op.WaitMillis == 0 || step.State >= wire.StepState_STEP_STATE_COMMITTED:
			return stepResp(step), nil
		}
		select {
		case <-wake:
		case <-deadline:
			return stepResp(step), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// check does what a mover does with a sealed step.
func (f *fakeCluster) check(ctx context.Context, key *wire.StepKey) error {
	index, err := ckpt.CheckStepOn(ctx, f, key)
	commit := &wire.CommitStep{Key: key, Index: index}
	if err != nil {
		commit.Error = err.Error()
	}
	_, cerr := f.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CommitStep{CommitStep: commit}})
	if err == nil {
		err = cerr
	}
	return err
}

// corrupt changes one byte of the only file in dir whose name ends with name.
func (f *fakeCluster) corrupt(dir moraine.InodeID, name string, at int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := f.dirs[uint64(dir)][name]
	data := slices.Clone(f.files[id])
	data[at] ^= 0x40
	f.files[id] = data
}
