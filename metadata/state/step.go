package state

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// Bounds of a checkpoint.
const (
	// MaxWorld is the most ranks.
	MaxWorld = 1 << 16
	// MaxMissing is the most missing ranks that an answer names.
	MaxMissing = 1000
	// DefaultSealTimeout is how long an open step waits for the next seal where
	// BeginStep does not say, in milliseconds of cluster time.
	DefaultSealTimeout = 600_000
)

const (
	stepOpen      = wire.StepState_STEP_STATE_OPEN
	stepSealed    = wire.StepState_STEP_STATE_SEALED
	stepCommitted = wire.StepState_STEP_STATE_COMMITTED
	stepAborted   = wire.StepState_STEP_STATE_ABORTED
	stepDeleted   = wire.StepState_STEP_STATE_DELETED
	// stepLost is what a committed step is called that has lost bytes. Its record says
	// committed, and where: it is as immutable as the others, and may get its bytes back.
	stepLost = wire.StepState_STEP_STATE_LOST
)

func (s stepID) encode(b []byte) []byte {
	b = putFixed64(b, uint64(s.run))
	b = putUvarint(b, uint64(s.attempt))
	return putUvarint(b, s.step)
}

func (s *stepID) decode(d *dec) {
	s.run = moraine.RunID(d.fixed64())
	s.attempt = d.u32()
	s.step = d.uvarint()
}

func (s stepID) toWire() *wire.StepKey {
	return &wire.StepKey{Run: uint64(s.run), Attempt: s.attempt, Step: s.step}
}

// String names the checkpoint for people: the path below its run's directory.
func (s stepID) String() string { return s.attemptDir() + "/" + s.name() }

func (s stepID) attemptDir() string { return "attempt-" + utoa(uint64(s.attempt)) }
func (s stepID) name() string       { return "step-" + utoa(s.step) }

func stepFromWire(w *wire.StepKey) stepID {
	return stepID{moraine.RunID(w.GetRun()), w.GetAttempt(), w.GetStep()}
}

// stepOfKey returns the checkpoint that a key ends with.
func stepOfKey(key []byte) stepID {
	tail := key[len(key)-20:]
	return stepID{
		moraine.RunID(binary.BigEndian.Uint64(tail)), binary.BigEndian.Uint32(tail[8:]), binary.BigEndian.Uint64(tail[12:]),
	}
}

// step is a checkpoint. Its parts are rows of their own.
type step struct {
	id       stepID // in the key
	state    wire.StepState
	world    uint32
	sealed   uint32
	dir      moraine.InodeID
	timeout  uint64 // milliseconds of cluster time
	lastSeal uint64 // cluster time of the last seal, or of the first BeginStep
	reason   string
	missing  []uint32 // of an aborted step
	bytes    uint64
	level    moraine.Level
	at       int64 // committed, wall clock
	degraded uint64
	protects uint32
	job      moraine.JobID
	digest   []byte
	index    moraine.InodeID // of a committed step; 0 where it has none
	loss     stepLoss        // of a committed step that has lost bytes
}

const (
	stepVersion = 1
	// stepHasLoss is set in the byte of the state of a record that ends with a loss.
	stepHasLoss = 0x80
)

func (s *step) encode() []byte {
	b := make([]byte, 0, 128+len(s.reason)+2*len(s.missing))
	state := byte(s.state)
	if s.lost() {
		state |= stepHasLoss
	}
	b = append(b, stepVersion, state)
	b = putUvarint(b, uint64(s.world))
	b = putUvarint(b, uint64(s.sealed))
	b = putFixed64(b, uint64(s.dir))
	b = putUvarint(b, s.timeout)
	b = putUvarint(b, s.lastSeal)
	b = putString(b, s.reason)
	b = putUvarint(b, uint64(len(s.missing)))
	for _, rank := range s.missing {
		b = putUvarint(b, uint64(rank))
	}
	b = putUvarint(b, s.bytes)
	b = append(b, byte(s.level))
	b = putFixed64(b, uint64(s.at))
	b = putUvarint(b, s.degraded)
	b = putUvarint(b, uint64(s.protects))
	b = putFixed64(b, uint64(s.job))
	b = putBytes(b, s.digest)
	b = putFixed64(b, uint64(s.index))
	if s.lost() {
		b = putUvarint(putFixed64(b, uint64(s.loss.inode)), uint64(s.loss.offset))
	}
	return b
}

func (s *step) decode(b []byte) error {
	d := dec{b: b}
	d.version(stepVersion)
	state := d.byte()
	s.state = wire.StepState(state &^ stepHasLoss)
	s.world = d.u32()
	s.sealed = d.u32()
	s.dir = moraine.InodeID(d.fixed64())
	s.timeout = d.uvarint()
	s.lastSeal = d.uvarint()
	s.reason = d.string()
	for range d.count(1) {
		s.missing = append(s.missing, d.u32())
	}
	s.bytes = d.uvarint()
	s.level = moraine.Level(d.byte())
	s.at = int64(d.fixed64())
	s.degraded = d.uvarint()
	s.protects = d.u32()
	s.job = moraine.JobID(d.fixed64())
	s.digest = d.bytes()
	s.index = moraine.InodeID(d.fixed64())
	s.loss = stepLoss{}
	if state&stepHasLoss != 0 {
		s.loss = stepLoss{moraine.InodeID(d.fixed64()), int64(d.uvarint())}
		if s.loss.inode == 0 {
			d.fail(errNoLoss)
		}
	}
	return d.end("step")
}

func (s *step) toWire() *wire.Step {
	w := &wire.Step{
		Key: s.id.toWire(), State: s.state, World: s.world, Sealed: s.sealed, Dir: uint64(s.dir), Missing: s.missing,
		Reason: s.reason, Bytes: s.bytes, Level: uint32(s.level), CommittedAt: s.at, Degraded: s.degraded,
		Protects: s.protects, Job: uint64(s.job), Digest: s.digest,
	}
	if s.state == stepCommitted {
		w.Path = s.id.String()
	}
	if s.lost() {
		w.State = stepLost
		w.Loss = &wire.StepLoss{Inode: uint64(s.loss.inode), Offset: uint64(s.loss.offset)}
	}
	return w
}

func stepReply(s *step) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Step{Step: &wire.StepReply{Step: s.toWire()}}}
}

// stepRecord returns a checkpoint's record; nil where there is none.
func (v *view) stepRecord(id stepID) (*step, error) {
	b, ok, err := v.r.Get(v.k.step(id))
	if err != nil || !ok {
		return nil, err
	}
	s := &step{id: id}
	return s, s.decode(b)
}

// mustStep returns a step that another record refers to.
func (v *view) mustStep(id stepID) (*step, error) {
	s, err := v.stepRecord(id)
	if err == nil && s == nil {
		err = &moraine.Error{Op: "step", Ref: id.String(), Kind: moraine.Corrupt}
	}
	return s, err
}

func (t *tx) putStep(s *step) { t.put(t.k.step(s.id), s.encode()) }

// stepChanged tells those who wait.
func (t *tx) stepChanged(id stepID) {
	t.events.StepsChanged = append(t.events.StepsChanged, id.toWire())
}

// runInScope returns the run of a request and its directory, which must be in
// the caller's scope.
func (v *view) runInScope(sc scope, op string, id moraine.RunID) (*run, *inode, error) {
	dir, err := v.named(sc, moraine.InodeID(id))
	if err != nil {
		return nil, nil, err
	}
	r, err := v.runRecord(id)
	if err != nil {
		return nil, nil, err
	}
	ref := moraine.InodeID(id).String()
	if r == nil {
		return nil, nil, fail(moraine.NotFound, op, ref, "no such training run")
	}
	if dir.nlink == 0 {
		return nil, nil, fail(moraine.NotFound, op, ref, "the run's directory was removed")
	}
	return r, dir, nil
}

// presentRun is runInScope for what only the present attempt may do.
func (t *tx) presentRun(op string, id stepID) (*run, *inode, error) {
	r, dir, err := t.runInScope(t.scope, op, id.run)
	switch {
	case err != nil:
		return nil, nil, err
	case id.attempt < r.attempt:
		return nil, nil, fail(moraine.Fenced, op, id.String(), "attempt %d has taken over", r.attempt)
	case id.attempt > r.attempt:
		return nil, nil, fail(moraine.InvalidArgument, op, id.String(), "attempt %d is the latest", r.attempt)
	}
	return r, dir, nil
}

// beginStep has a rank take part in a checkpoint, which the first one to begin
// makes. A rank that begins again, from another session, takes the place of the
// one before.
func (m *Machine) beginStep(t *tx, op *wire.BeginStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	if op.GetWorld() == 0 || op.GetWorld() > MaxWorld || op.GetRank() >= op.GetWorld() {
		return nil, fail(moraine.InvalidArgument, "begin step", id.String(), "rank %d of %d; a checkpoint has 1 to %d ranks", op.GetRank(), op.GetWorld(), MaxWorld)
	}
	_, dir, err := t.presentRun("begin step", id)
	if err != nil {
		return nil, err
	}
	s, err := t.stepRecord(id)
	if err != nil {
		return nil, err
	}
	if s == nil {
		if s, err = m.makeStep(t, id, dir, op); err != nil {
			return nil, err
		}
	}
	switch {
	case s.state == stepAborted:
		return nil, fail(moraine.Aborted, "begin step", id.String(), "%s", s.reason)
	case s.state != stepOpen:
		return nil, fail(moraine.Exists, "begin step", id.String(), "it is saved already")
	case s.world != op.GetWorld():
		return nil, fail(moraine.Conflict, "begin step", id.String(), "other ranks say that there are %d of them, rank %d says %d", s.world, op.GetRank(), op.GetWorld())
	}
	p, err := t.partRecord(id, op.GetRank())
	if err != nil {
		return nil, err
	}
	if p == nil || !p.sealed {
		if p != nil && p.session != t.session.id {
			t.del(t.k.sessionStep(p.session, id, op.GetRank()))
		}
		t.put(t.k.part(id, op.GetRank()), (&part{session: t.session.id}).encode())
		t.put(t.k.sessionStep(t.session.id, id, op.GetRank()), []byte{stepVersion})
	}
	return stepReply(s), nil
}

// makeStep makes a checkpoint's record and its directory, which has no name
// until the checkpoint is committed. Its parent is the run's directory all the
// same, so that a session confined to the run may write for it.
func (m *Machine) makeStep(t *tx, id stepID, run *inode, op *wire.BeginStep) (*step, error) {
	dir, err := m.makeInode(t, inode{typ: typeDirectory, mode: 0o755, uid: run.uid, gid: run.gid, nlink: 2,
		tenant: run.tenant, parent: run.id, sealed: true})
	if err != nil {
		return nil, err
	}
	s := &step{id: id, state: stepOpen, world: op.GetWorld(), dir: dir.id, timeout: op.GetSealTimeoutMillis(), lastSeal: t.clusterTime()}
	if s.timeout == 0 {
		s.timeout = DefaultSealTimeout
	}
	t.putStep(s)
	t.put(t.k.openStep(id), []byte{stepVersion})
	t.stepChanged(id)
	return s, nil
}
