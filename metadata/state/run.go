package state

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// MaxLaunchLen is the longest launch or scheduler's job, in bytes.
const MaxLaunchLen = 255

// maxFencedSteps is how many open steps of the attempts before are aborted when
// a new one begins; more run into their timeout, fenced as they are.
const maxFencedSteps = 32

// run is a training run: a directory in which attempts leave checkpoints.
type run struct {
	id        moraine.RunID // the directory's inode; in the key
	attempt   uint32        // the present one
	committed uint64        // steps, over all attempts
}

const runVersion = 1

func (r *run) encode() []byte {
	return putUvarint(putUvarint([]byte{runVersion}, uint64(r.attempt)), r.committed)
}

func (r *run) decode(b []byte) error {
	d := dec{b: b}
	d.version(runVersion)
	r.attempt = d.u32()
	r.committed = d.uvarint()
	return d.end("run")
}

// runRecord returns a run's record; nil where the directory is none.
func (v *view) runRecord(id moraine.RunID) (*run, error) {
	b, ok, err := v.r.Get(v.k.run(id))
	if err != nil || !ok {
		return nil, err
	}
	r := &run{id: id}
	return r, r.decode(b)
}

// attempt is one start of a run. Only the present one may save.
type attempt struct {
	number  uint32 // in the key
	launch  string
	job     string // of the scheduler; may be empty
	restart uint64 // within the job
	// resolved is whether its parent checkpoint is fixed; parent is zero where
	// it was fixed that there is none.
	resolved bool
	parent   stepID
}

func (a *attempt) encode() []byte {
	b := putString([]byte{runVersion}, a.launch)
	b = putString(b, a.job)
	b = putUvarint(b, a.restart)
	b = putBool(b, a.resolved)
	return a.parent.encode(b)
}

func (a *attempt) decode(b []byte) error {
	d := dec{b: b}
	d.version(runVersion)
	a.launch = d.string()
	a.job = d.string()
	a.restart = d.uvarint()
	a.resolved = d.bool()
	a.parent.decode(&d)
	return d.end("attempt")
}

// attempt returns an attempt's record, which must exist.
func (v *view) attempt(run moraine.RunID, number uint32) (*attempt, error) {
	b, ok, err := v.r.Get(v.k.attempt(run, number))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, &moraine.Error{Op: "attempt", Ref: moraine.InodeID(run).String() + "/" + utoa(uint64(number)), Kind: moraine.Corrupt}
	}
	a := &attempt{number: number}
	return a, a.decode(b)
}

// openRun makes or joins an attempt of a run.
func (m *Machine) openRun(t *tx, op *wire.OpenRun) (*wire.MetaResponse, error) {
	switch {
	case op.GetReadOnly():
		return m.visitRun(t, op)
	case op.GetLaunch() == "":
		return nil, fail(moraine.InvalidArgument, "open run", op.GetName(), "a launch needs a name that its ranks share")
	case len(op.GetLaunch()) > MaxLaunchLen || len(op.GetJob()) > MaxLaunchLen:
		return nil, fail(moraine.NameTooLong, "open run", op.GetName(), "launch and job have %d bytes at most", MaxLaunchLen)
	}
	r, err := m.makeRun(t, op)
	if err != nil {
		return nil, err
	}
	known, err := t.attemptOf(r.id, op.GetLaunch())
	if err != nil {
		return nil, err
	}
	if known == 0 {
		if err := m.mayBegin(t, r, op); err != nil {
			return nil, err
		}
		known = r.attempt + 1
		if err := m.beginAttempt(t, r, op); err != nil {
			return nil, err
		}
	}
	if known != r.attempt {
		return nil, fail(moraine.Fenced, "open run", op.GetName(), "launch %q is attempt %d, and attempt %d has taken over", op.GetLaunch(), known, r.attempt)
	}
	t.put(t.k.attemptSession(r.id, known, t.session.id), []byte{runVersion})
	t.put(t.k.sessionAttempt(t.session.id, r.id, known), []byte{runVersion})
	return t.runReply(r, op.GetName(), known)
}

// visitRun answers what a run is, for one who only lists and resolves.
func (m *Machine) visitRun(t *tx, op *wire.OpenRun) (*wire.MetaResponse, error) {
	_, child, err := m.entry(t, "open run", parentOr(t.scope, op.GetParent()), op.GetName())
	if err != nil {
		return nil, err
	}
	r, err := t.runRecord(moraine.RunID(child.id))
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, fail(moraine.NotFound, "open run", op.GetName(), "the directory is no training run")
	}
	return t.runReply(r, op.GetName(), r.attempt)
}

// parentOr is the directory asked for, or the session's root.
func parentOr(sc scope, id uint64) uint64 {
	if id == 0 {
		return uint64(sc.root)
	}
	return id
}

// makeRun finds the run, or makes its directory one.
func (m *Machine) makeRun(t *tx, op *wire.OpenRun) (*run, error) {
	if err := checkName("open run", op.GetName()); err != nil {
		return nil, err
	}
	parent, err := t.directory(moraine.InodeID(parentOr(t.scope, op.GetParent())))
	if err != nil {
		return nil, err
	}
	dir, err := m.makeDir(t, "open run", parent, op.GetName())
	if err != nil {
		return nil, err
	}
	r, err := t.runRecord(moraine.RunID(dir.id))
	if err == nil && r == nil {
		r = &run{id: moraine.RunID(dir.id)}
	}
	return r, err
}

// makeDir finds the directory name in parent, or makes it, of the parent's
// owner and tenant.
func (m *Machine) makeDir(t *tx, op string, parent *inode, name string) (*inode, error) {
	e, ok, err := t.lookup(parent.id, name)
	if err != nil {
		return nil, err
	}
	if ok {
		if e.typ != typeDirectory {
			return nil, fail(moraine.NotDirectory, op, name, "")
		}
		dir, err := t.inode(e.inode)
		if err != nil {
			return nil, damaged(err)
		}
		return dir, nil
	}
	dir, err := m.makeInode(t, inode{typ: typeDirectory, mode: 0o755, uid: parent.uid, gid: parent.gid, nlink: 2,
		tenant: parent.tenant, parent: parent.id, name: t.hint(name)})
	if err != nil {
		return nil, err
	}
	m.link(t, parent, name, dir)
	return dir, nil
}

// attemptOf returns the attempt that a launch made; 0 where it made none.
func (v *view) attemptOf(run moraine.RunID, launch string) (uint32, error) {
	b, ok, err := v.r.Get(v.k.launch(run, launch))
	if err != nil || !ok {
		return 0, err
	}
	d := dec{b: b}
	d.version(runVersion)
	n := d.u32()
	return n, d.end("launch")
}

// mayBegin decides whether an unknown launch may take the run over. A lower
// restart of a job that the run knows is late, and never may; while the present
// attempt has live sessions only a higher restart of its job may, or one that
// says so.
func (m *Machine) mayBegin(t *tx, r *run, op *wire.OpenRun) error {
	if r.attempt == 0 {
		return nil
	}
	if op.GetJob() != "" {
		highest, known, err := t.jobRestart(r.id, op.GetJob())
		if err != nil {
			return err
		}
		if known && op.GetRestart() < highest {
			return fail(moraine.Fenced, "open run", op.GetName(), "restart %d of job %s has begun already; this is restart %d", highest, op.GetJob(), op.GetRestart())
		}
	}
	present, err := t.attempt(r.id, r.attempt)
	if err != nil {
		return err
	}
	higher := op.GetJob() != "" && op.GetJob() == present.job && op.GetRestart() > present.restart
	if higher || op.GetTakeover() {
		return nil
	}
	live, err := t.keysUnder(t.k.attemptSessions(r.id, r.attempt), 1)
	if err != nil {
		return err
	}
	if len(live) > 0 {
		return fail(moraine.Busy, "open run", op.GetName(), "attempt %d (launch %q) has live sessions: wait until they end, or take over", r.attempt, present.launch)
	}
	return nil
}

// jobRestart returns the highest restart of a scheduler's job that began an
// attempt of the run.
func (v *view) jobRestart(run moraine.RunID, job string) (highest uint64, known bool, err error) {
	b, known, err := v.r.Get(v.k.runJob(run, job))
	if err != nil || !known {
		return 0, false, err
	}
	d := dec{b: b}
	d.version(runVersion)
	highest = d.uvarint()
	return highest, true, d.end("restart of a job")
}

// beginAttempt makes the next attempt the present one; from here on everything
// that an earlier one asks for is Fenced.
func (m *Machine) beginAttempt(t *tx, r *run, op *wire.OpenRun) error {
	r.attempt++
	a := &attempt{number: r.attempt, launch: op.GetLaunch(), job: op.GetJob(), restart: op.GetRestart()}
	t.put(t.k.run(r.id), r.encode())
	t.put(t.k.attempt(r.id, a.number), a.encode())
	t.put(t.k.launch(r.id, a.launch), putUvarint([]byte{runVersion}, uint64(a.number)))
	if a.job != "" {
		t.put(t.k.runJob(r.id, a.job), putUvarint([]byte{runVersion}, a.restart))
	}
	prefix := be64(t.k.key(tabOpenStep, 8), uint64(r.id))
	open, err := t.keysUnder(prefix, maxFencedSteps)
	if err != nil {
		return err
	}
	for _, key := range open {
		s, err := t.mustStep(stepOfKey(key))
		if err != nil {
			return err
		}
		if err := m.abortStepRecord(t, s, "attempt "+utoa(uint64(a.number))+" has taken over"); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) runReply(r *run, name string, attempt uint32) (*wire.MetaResponse, error) {
	w, err := t.runToWire(r, name)
	if err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Run{Run: &wire.RunReply{Run: w, Attempt: attempt}}}, nil
}

func (v *view) runToWire(r *run, name string) (*wire.Run, error) {
	w := &wire.Run{Id: uint64(r.id), Name: name, Attempt: r.attempt, Committed: r.committed}
	if r.attempt == 0 {
		return w, nil
	}
	a, err := v.attempt(r.id, r.attempt)
	if err != nil {
		return nil, err
	}
	w.Launch, w.Resolved = a.launch, a.resolved
	if a.parent != (stepID{}) {
		w.Parent = a.parent.toWire()
	}
	return w, nil
}

// leaveAttempts takes an ended session out of the attempts that it joined.
func (m *Machine) leaveAttempts(t *tx, id moraine.SessionID, budget int) (int, error) {
	keys, err := t.keysUnder(t.k.sessionAttempts(id), (budget+1)/2)
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		tail := key[len(key)-12:]
		r, number := moraine.RunID(binary.BigEndian.Uint64(tail)), binary.BigEndian.Uint32(tail[8:])
		t.del(key)
		t.del(t.k.attemptSession(r, number, id))
	}
	return 2 * len(keys), nil
}

// readRuns lists the training runs in a directory, by name.
func (v *view) readRuns(sc scope, op *wire.ListRuns) (*wire.MetaResponse, error) {
	dir, err := v.named(sc, moraine.InodeID(parentOr(sc, op.GetParent())))
	if err != nil {
		return nil, err
	}
	if dir.typ != typeDirectory {
		return nil, fail(moraine.NotDirectory, "list runs", dir.id.String(), "")
	}
	reply := &wire.RunsReply{}
	limit := pageLimit(op.GetLimit())
	prefix := v.k.dentries(dir.id)
	lo := prefix
	if op.GetAfter() != "" {
		lo = append(v.k.dentry(dir.id, op.GetAfter()), 0)
	}
	var bad error
	err = v.r.Scan(lo, prefixEnd(prefix), func(key, value []byte) bool {
		name := string(key[len(prefix):])
		var e dentry
		if e, bad = decodeDentry(value); bad != nil || e.typ != typeDirectory {
			return bad == nil
		}
		var r *run
		if r, bad = v.runRecord(moraine.RunID(e.inode)); bad != nil || r == nil {
			return bad == nil
		}
		if reply.More = len(reply.Runs) == limit; reply.More {
			return false
		}
		var w *wire.Run
		w, bad = v.runToWire(r, name)
		reply.Runs = append(reply.Runs, w)
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Runs{Runs: reply}}, err
}
