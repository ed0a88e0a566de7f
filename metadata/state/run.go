package state

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// MaxLaunchLen is the longest launch or scheduler's job, in bytes.
const MaxLaunchLen = 255

// maxFencedSteps is how many open steps of the attempts before are aborted when
// a new one begins; more run into their timeout, fenced as they are.
const maxFencedSteps = 32

// runRecord returns a run's record; nil where the directory is none.
func (v *view) runRecord(id moraine.RunID) (*record.Run, error) {
	b, ok, err := v.r.Get(v.k.run(id))
	if err != nil || !ok {
		return nil, err
	}
	r := &record.Run{Id: id}
	return r, r.Decode(b)
}

// attempt returns an attempt's record, which must exist.
func (v *view) attempt(run moraine.RunID, number uint32) (*record.Attempt, error) {
	b, ok, err := v.r.Get(v.k.attempt(run, number))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, &moraine.Error{Op: "attempt", Ref: moraine.InodeID(run).String() + "/" + record.Utoa(uint64(number)), Kind: moraine.Corrupt}
	}
	a := &record.Attempt{Number: number}
	return a, a.Decode(b)
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
	known, err := t.attemptOf(r.Id, op.GetLaunch())
	if err != nil {
		return nil, err
	}
	if known == 0 {
		if err := m.mayBegin(t, r, op); err != nil {
			return nil, err
		}
		known = r.Attempt + 1
		if err := m.beginAttempt(t, r, op); err != nil {
			return nil, err
		}
	}
	if known != r.Attempt {
		return nil, fail(moraine.Fenced, "open run", op.GetName(), "launch %q is attempt %d, and attempt %d has taken over", op.GetLaunch(), known, r.Attempt)
	}
	t.put(t.k.attemptSession(r.Id, known, t.session.Id), []byte{record.RunVersion})
	t.put(t.k.sessionAttempt(t.session.Id, r.Id, known), []byte{record.RunVersion})
	return t.runReply(r, op.GetName(), known)
}

// visitRun answers what a run is, for one who only lists and resolves.
func (m *Machine) visitRun(t *tx, op *wire.OpenRun) (*wire.MetaResponse, error) {
	_, child, err := m.entry(t, "open run", parentOr(t.scope, op.GetParent()), op.GetName())
	if err != nil {
		return nil, err
	}
	r, err := t.runRecord(moraine.RunID(child.Id))
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, fail(moraine.NotFound, "open run", op.GetName(), "the directory is no training run")
	}
	return t.runReply(r, op.GetName(), r.Attempt)
}

// parentOr is the directory asked for, or the session's root.
func parentOr(sc scope, id uint64) uint64 {
	if id == 0 {
		return uint64(sc.root)
	}
	return id
}

// makeRun finds the run, or makes its directory one.
func (m *Machine) makeRun(t *tx, op *wire.OpenRun) (*record.Run, error) {
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
	r, err := t.runRecord(moraine.RunID(dir.Id))
	if err == nil && r == nil {
		r = &record.Run{Id: moraine.RunID(dir.Id)}
	}
	return r, err
}

// makeDir finds the directory name in parent, or makes it, of the parent's
// owner and tenant.
func (m *Machine) makeDir(t *tx, op string, parent *record.Inode, name string) (*record.Inode, error) {
	e, ok, err := t.lookup(parent.Id, name)
	if err != nil {
		return nil, err
	}
	if ok {
		if e.Typ != record.TypeDirectory {
			return nil, fail(moraine.NotDirectory, op, name, "")
		}
		dir, err := t.inode(e.Inode)
		if err != nil {
			return nil, damaged(err)
		}
		return dir, nil
	}
	dir, err := m.makeInode(t, record.Inode{Typ: record.TypeDirectory, Mode: 0o755, Uid: parent.Uid, Gid: parent.Gid, Nlink: 2,
		Tenant: parent.Tenant, Parent: parent.Id, Name: t.hint(name)})
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
	d := record.Dec{B: b}
	d.Version(record.RunVersion)
	n := d.U32()
	return n, d.End("launch")
}

// mayBegin decides whether an unknown launch may take the run over. A lower
// restart of a job that the run knows is late, and never may; while the present
// attempt has live sessions only a higher restart of its job may, or one that
// says so.
func (m *Machine) mayBegin(t *tx, r *record.Run, op *wire.OpenRun) error {
	if r.Attempt == 0 {
		return nil
	}
	if op.GetJob() != "" {
		highest, known, err := t.jobRestart(r.Id, op.GetJob())
		if err != nil {
			return err
		}
		if known && op.GetRestart() < highest {
			return fail(moraine.Fenced, "open run", op.GetName(), "restart %d of job %s has begun already; this is restart %d", highest, op.GetJob(), op.GetRestart())
		}
	}
	present, err := t.attempt(r.Id, r.Attempt)
	if err != nil {
		return err
	}
	higher := op.GetJob() != "" && op.GetJob() == present.Job && op.GetRestart() > present.Restart
	if higher || op.GetTakeover() {
		return nil
	}
	live, err := t.keysUnder(t.k.attemptSessions(r.Id, r.Attempt), 1)
	if err != nil {
		return err
	}
	if len(live) > 0 {
		return fail(moraine.Busy, "open run", op.GetName(), "attempt %d (launch %q) has live sessions: wait until they end, or take over", r.Attempt, present.Launch)
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
	d := record.Dec{B: b}
	d.Version(record.RunVersion)
	highest = d.Uvarint()
	return highest, true, d.End("restart of a job")
}

// beginAttempt makes the next attempt the present one; from here on everything
// that an earlier one asks for is Fenced.
func (m *Machine) beginAttempt(t *tx, r *record.Run, op *wire.OpenRun) error {
	r.Attempt++
	a := &record.Attempt{Number: r.Attempt, Launch: op.GetLaunch(), Job: op.GetJob(), Restart: op.GetRestart()}
	t.put(t.k.run(r.Id), r.Encode())
	t.put(t.k.attempt(r.Id, a.Number), a.Encode())
	t.put(t.k.launch(r.Id, a.Launch), record.PutUvarint([]byte{record.RunVersion}, uint64(a.Number)))
	if a.Job != "" {
		t.put(t.k.runJob(r.Id, a.Job), record.PutUvarint([]byte{record.RunVersion}, a.Restart))
	}
	prefix := record.Be64(t.k.key(record.TabOpenStep, 8), uint64(r.Id))
	open, err := t.keysUnder(prefix, maxFencedSteps)
	if err != nil {
		return err
	}
	for _, key := range open {
		s, err := t.mustStep(stepOfKey(key))
		if err != nil {
			return err
		}
		if err := m.abortStepRecord(t, s, "attempt "+record.Utoa(uint64(a.Number))+" has taken over"); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) runReply(r *record.Run, name string, attempt uint32) (*wire.MetaResponse, error) {
	w, err := t.runToWire(r, name)
	if err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Run{Run: &wire.RunReply{Run: w, Attempt: attempt}}}, nil
}

func (v *view) runToWire(r *record.Run, name string) (*wire.Run, error) {
	w := &wire.Run{Id: uint64(r.Id), Name: name, Attempt: r.Attempt, Committed: r.Committed}
	if r.Attempt == 0 {
		return w, nil
	}
	a, err := v.attempt(r.Id, r.Attempt)
	if err != nil {
		return nil, err
	}
	w.Launch, w.Resolved = a.Launch, a.Resolved
	if a.Parent != (record.StepID{}) {
		w.Parent = a.Parent.ToWire()
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
	if dir.Typ != record.TypeDirectory {
		return nil, fail(moraine.NotDirectory, "list runs", dir.Id.String(), "")
	}
	reply := &wire.RunsReply{}
	limit := pageLimit(op.GetLimit())
	prefix := v.k.dentries(dir.Id)
	lo := prefix
	if op.GetAfter() != "" {
		lo = append(v.k.dentry(dir.Id, op.GetAfter()), 0)
	}
	var bad error
	err = v.r.Scan(lo, prefixEnd(prefix), func(key, value []byte) bool {
		name := string(key[len(prefix):])
		var e record.Dentry
		if e, bad = record.DecodeDentry(value); bad != nil || e.Typ != record.TypeDirectory {
			return bad == nil
		}
		var r *record.Run
		if r, bad = v.runRecord(moraine.RunID(e.Inode)); bad != nil || r == nil {
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
