package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// addConcat makes the job, which owns the file from now on.
func (m *Machine) addConcat(t *tx, i *record.Inode, op *wire.Concat) (*wire.MetaResponse, error) {
	owner, err := t.jobOwner("concat")
	if err != nil {
		return nil, err
	}
	l := op.GetLink()
	c := &record.ConcatJob{Parent: moraine.InodeID(l.GetParent()), Name: l.GetName(), Replace: l.GetReplace(), Expect: l.GetExpect(), Consume: moraine.InodeID(op.GetConsume()),
		Mtime: op.GetMtime(), Root: t.scope.root, Session: t.scope.session, Ranges: uint64(len(op.GetRanges()))}
	id, err := m.addJob(t, jobSpec{kind: wire.JobKind_JOB_KIND_CONCAT, subject: record.Clip(l.GetName(), moraine.MaxNameLen),
		target: uint64(i.Id), cursor: c.Encode(), total: c.Ranges, owner: owner})
	if err != nil {
		return nil, err
	}
	var row []record.ConcatRange
	for n, r := range op.GetRanges() {
		if r.GetOffset() > MaxFileSize || r.GetLength() > MaxFileSize {
			return nil, fail(moraine.InvalidArgument, "concat", moraine.InodeID(r.GetInode()).String(), "the range is past the largest size of a file")
		}
		row = append(row, record.ConcatRange{Inode: moraine.InodeID(r.GetInode()), Generation: moraine.Generation(r.GetGeneration()), Offset: int64(r.GetOffset()), Length: int64(r.GetLength())})
		if len(row) == record.ConcatRow || n == len(op.GetRanges())-1 {
			t.insert(t.k.concatRow(id, uint64(n)/record.ConcatRow), record.EncodeConcatRow(row))
			row = row[:0]
		}
	}
	t.del(t.k.sessionInode(i.Owner, i.Id))
	i.Owner = 0
	t.putInode(i)
	j, err := t.job(id)
	if err != nil {
		return nil, err
	}
	return jobsReply(j), nil
}

// runConcat does about limit records of a concatenation. It returns whether the
// job has ended; else it is to be written.
func (m *Machine) runConcat(t *tx, j *record.Job, limit int) (over bool, err error) {
	if j.Ending != 0 {
		return m.endConcat(t, j, limit)
	}
	c := &record.ConcatJob{}
	if err := c.Decode(j.Cursor); err != nil {
		return false, err
	}
	t.scope = scope{root: c.Root, session: c.Session}
	if c.Next == c.Ranges {
		err = m.publishConcat(t, j, c)
		over = err == nil
	} else {
		err = m.concatPiece(t, j, c, limit)
	}
	if err == nil || !isAnswer(err) {
		j.Cursor = c.Encode()
		return over, err
	}
	// What this piece did is undone, what those before it did goes next.
	t.reset()
	t.ignoresQuota = true
	was, jobErr := t.job(j.Id)
	if jobErr != nil {
		return false, jobErr
	}
	*j = *was
	j.Ending, j.Err, j.Why = wire.JobState_JOB_STATE_FAILED, record.Clip(err.Error(), moraine.MaxNameLen), moraineKind(err)
	return false, nil
}

// concatPiece lays the next tables.
func (m *Machine) concatPiece(t *tx, j *record.Job, c *record.ConcatJob, limit int) error {
	i, err := t.inode(moraine.InodeID(j.Target))
	if err != nil {
		return damaged(err)
	}
	if i.Stored == 0 && c.Next == 0 && c.Taken == 0 {
		i.Level, i.Degraded = moraine.NVMe, 0
	}
	p := &concatPiece{tx: t, m: m, i: i, c: c, stop: len(t.order) + limit}
	for n := 0; c.Next < c.Ranges && !p.full && n < limit; n++ {
		if err := p.take(j); err != nil {
			return err
		}
	}
	if err := t.watchLevel(i); err != nil {
		return err
	}
	if err := t.raiseGeneration(i); err != nil {
		return err
	}
	t.putInode(i)
	return nil
}

// concatPiece is a piece at work.
type concatPiece struct {
	*tx
	m    *Machine
	i    *record.Inode
	c    *record.ConcatJob
	stop int
	full bool // the next table would be too much
	// The row that holds the present range.
	row    []record.ConcatRange
	rowKey []byte
}

// present returns the range whose turn it is.
func (p *concatPiece) present(j *record.Job) (record.ConcatRange, error) {
	at := p.c.Next % record.ConcatRow
	if p.row == nil || at == 0 && p.c.Taken == 0 {
		p.rowKey = p.k.concatRow(j.Id, p.c.Next/record.ConcatRow)
		b, ok, err := p.Get(p.rowKey)
		if err != nil {
			return record.ConcatRange{}, err
		}
		if !ok {
			return record.ConcatRange{}, &moraine.Error{Op: "concat", Ref: j.Id.String(), Kind: moraine.Corrupt, Err: record.ErrConcatRow}
		}
		if p.row, err = record.DecodeConcatRow(b); err != nil {
			return record.ConcatRange{}, err
		}
	}
	if at >= uint64(len(p.row)) {
		return record.ConcatRange{}, &moraine.Error{Op: "concat", Ref: j.Id.String(), Kind: moraine.Corrupt, Err: record.ErrConcatRow}
	}
	return p.row[at], nil
}

// take lays what there is room for of the present range, and passes it when it is
// whole.
func (p *concatPiece) take(j *record.Job) error {
	r, err := p.present(j)
	if err != nil {
		return err
	}
	src, length, err := p.source(r)
	if err != nil {
		return err
	}
	lo, hi := r.Offset, r.Offset+length
	to := p.i.Size - p.c.Taken - lo // from a place in the source to one in the file
	err = p.refsFrom(src.Content, lo+p.c.Taken, func(f record.Ref) (bool, error) {
		if f.Base >= hi {
			return false, nil
		}
		// Eviction and staging change tables and no generation: since the piece before
		// this one the table may be one that reaches back into what is taken.
		if err := p.lay(f, lo+p.c.Taken, hi, to); err != nil || p.full {
			return false, err
		}
		p.c.Taken = min(f.End, hi) - lo
		return true, nil
	})
	if err != nil {
		return err
	}
	if src.Stored > 0 && length > 0 {
		// Also where only a part of the range is laid: by the next piece the source may be
		// evicted, and have nothing in memory any more.
		level, err := p.levelBeside(src)
		if err != nil {
			return err
		}
		p.i.Level = min(p.i.Level, level)
	}
	if p.full {
		p.i.Size, p.c.Generation = lo+p.c.Taken+to, src.Generation
		return nil
	}
	p.i.Size = hi + to
	if src.Stored > 0 && length > 0 {
		p.i.Degraded += src.Degraded
	}
	p.c.Next, p.c.Taken, p.c.Generation = p.c.Next+1, 0, 0
	j.Done++
	if p.c.Next%record.ConcatRow == 0 || p.c.Next == p.c.Ranges {
		p.del(p.rowKey)
	}
	return nil
}

// source returns the file of a range as it is now, and the length of the range.
func (p *concatPiece) source(r record.ConcatRange) (*record.Inode, int64, error) {
	src, err := p.contentFile("concat", uint64(r.Inode))
	if err != nil {
		return nil, 0, err
	}
	name := src.Id.String()
	want := r.Generation
	if want == 0 {
		want = p.c.Generation // 0 where none of it is taken yet
	}
	switch {
	case src.Tenant != p.i.Tenant:
		return nil, 0, fail(moraine.CrossTenant, "concat", name, "copy it instead")
	case want != 0 && want != src.Generation:
		return nil, 0, fail(moraine.Stale, "concat", name, "generation is %d, not %d", src.Generation, want)
	case r.Offset > src.Size || r.Length > src.Size-r.Offset:
		return nil, 0, fail(moraine.InvalidArgument, "concat", name, "the file has %d bytes, the range ends past them", src.Size)
	}
	length := r.Length
	if length == 0 {
		length = src.Size - r.Offset
	}
	if p.i.Size-p.c.Taken+length > MaxFileSize {
		return nil, 0, fail(moraine.TooLarge, "concat", p.i.Id.String(), "more than %d bytes", int64(MaxFileSize))
	}
	return src, length, nil
}

// lay takes what one table of a source has in [lo, hi): shared where that is all
// of it, else a table of its own. full is set, and nothing done, where the piece
// has no room for it; a piece that did nothing yet has.
func (p *concatPiece) lay(f record.Ref, lo, hi, to int64) error {
	if f.Base >= lo && f.End <= hi {
		if p.isFull(2) {
			return nil
		}
		return p.m.shareTable(p.tx, p.i, record.Ref{Table: f.Table, Base: f.Base + to, End: f.End + to})
	}
	all, err := p.extsFrom(f, f.Base, noLimit)
	if err != nil {
		return err
	}
	exts := cut(all, lo, hi)
	if len(exts) == 0 || p.isFull(2+2*len(exts)) {
		return nil
	}
	for n := range exts {
		exts[n].Offset += to
	}
	return p.m.addTable(p.tx, p.i, exts)
}

// isFull reports whether as many more records are too many.
func (p *concatPiece) isFull(records int) bool {
	p.full = len(p.order) > 0 && len(p.order)+records > p.stop
	return p.full
}

// publishConcat gives the file its name: in a piece of its own, so that nothing
// is lost where that cannot be.
func (m *Machine) publishConcat(t *tx, j *record.Job, c *record.ConcatJob) error {
	i, err := t.inode(moraine.InodeID(j.Target))
	if err != nil {
		return damaged(err)
	}
	i.Mtime, i.Ctime = t.now, t.now
	if c.Mtime != 0 {
		i.Mtime = c.Mtime
	}
	l := &wire.LinkTarget{Parent: uint64(c.Parent), Name: c.Name, Replace: c.Replace, Expect: c.Expect}
	if err := m.nameConcat(t, i, l, uint64(c.Consume)); err != nil {
		return err
	}
	j.Generation = i.Generation
	if err := m.endJob(t, j, wire.JobState_JOB_STATE_DONE, ""); err != nil {
		return err
	}
	// Quotas are asked here, and not when the command has ended, where a no would
	// be nobody's to hear.
	t.ignoresQuota = false
	err = m.applyUsage(t)
	t.usage.reset()
	t.ignoresQuota = true
	return err
}

// endConcat takes away what a job had built that is not to be published.
func (m *Machine) endConcat(t *tx, j *record.Job, limit int) (over bool, err error) {
	keys, err := t.keysUnder(t.k.concatRows(j.Id), limit)
	if err != nil {
		return false, err
	}
	for _, key := range keys {
		t.del(key)
	}
	if len(keys) == limit {
		return false, nil
	}
	i, err := t.inode(moraine.InodeID(j.Target))
	if err != nil {
		return false, damaged(err)
	}
	if err := m.dropFile(t, i); err != nil {
		return false, err
	}
	return true, m.endJob(t, j, j.Ending, j.Err)
}
