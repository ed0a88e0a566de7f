package content

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/metadata/state/usage"
	"github.com/morainefs/moraine/transport/wire"
)

// addConcat creates the job, which owns the file from now on.
func addConcat(t *kvtx.Tx, i *record.Inode, op *wire.Concat) (*wire.MetaResponse, error) {
	owner, err := jobs.JobOwner(t, "concat")
	if err != nil {
		return nil, err
	}
	l := op.GetLink()
	c := &record.ConcatJob{Parent: moraine.InodeID(l.GetParent()), Name: l.GetName(), Replace: l.GetReplace(), Expect: l.GetExpect(), Consume: moraine.InodeID(op.GetConsume()),
		Mtime: op.GetMtime(), Root: t.Scope.Root, Session: t.Scope.Session, Ranges: uint64(len(op.GetRanges()))}
	id, err := jobs.AddJob(t, jobs.JobSpec{Kind: wire.JobKind_JOB_KIND_CONCAT, Subject: record.Clip(l.GetName(), moraine.MaxNameLen),
		Target: uint64(i.Id), Cursor: c.Encode(), Total: c.Ranges, Owner: owner})
	if err != nil {
		return nil, err
	}
	var row []record.ConcatRange
	for n, r := range op.GetRanges() {
		if r.GetOffset() > tree.MaxFileSize || r.GetLength() > tree.MaxFileSize {
			return nil, kvtx.Fail(moraine.InvalidArgument, "concat", moraine.InodeID(r.GetInode()).String(), "the range ends beyond the largest size of a file")
		}
		row = append(row, record.ConcatRange{Inode: moraine.InodeID(r.GetInode()), Generation: moraine.Generation(r.GetGeneration()), Offset: int64(r.GetOffset()), Length: int64(r.GetLength())})
		if len(row) == record.ConcatRow || n == len(op.GetRanges())-1 {
			t.Insert(t.K.ConcatRow(id, uint64(n)/record.ConcatRow), record.EncodeConcatRow(row))
			row = row[:0]
		}
	}
	t.Del(t.K.SessionInode(i.Owner, i.Id))
	i.Owner = 0
	tree.PutInode(t, i)
	j, err := jobs.Job(&t.View, id)
	if err != nil {
		return nil, err
	}
	return usage.JobsReply(j), nil
}

// RunConcat does about limit records of a concatenation. It returns true if the job has ended;
// otherwise the caller writes the job.
func RunConcat(t *kvtx.Tx, j *record.Job, limit int) (over bool, err error) {
	if j.Ending != 0 {
		return endConcat(t, j, limit)
	}
	c := &record.ConcatJob{}
	if err := c.Decode(j.Cursor); err != nil {
		return false, err
	}
	t.Scope = kvtx.Scope{Root: c.Root, Session: c.Session}
	if c.Next == c.Ranges {
		err = publishConcat(t, j, c)
		over = err == nil
	} else {
		err = ConcatPiece(t, j, c, limit)
	}
	if err == nil || !kvtx.IsAnswer(err) {
		j.Cursor = c.Encode()
		return over, err
	}
	// This undoes the present piece; endConcat removes what earlier pieces did.
	t.Reset()
	t.IgnoresQuota = true
	was, jobErr := jobs.Job(&t.View, j.Id)
	if jobErr != nil {
		return false, jobErr
	}
	*j = *was
	j.Ending, j.Err, j.Why = wire.JobState_JOB_STATE_FAILED, record.Clip(err.Error(), moraine.MaxNameLen), kvtx.MoraineKind(err)
	return false, nil
}

// ConcatPiece lays the next tables.
func ConcatPiece(t *kvtx.Tx, j *record.Job, c *record.ConcatJob, limit int) error {
	i, err := tree.Inode(t, moraine.InodeID(j.Target))
	if err != nil {
		return kvtx.Damaged(err)
	}
	if i.Stored == 0 && c.Next == 0 && c.Taken == 0 {
		i.Level, i.Degraded = moraine.NVMe, 0
	}
	p := &concatPiece{Tx: t, i: i, c: c, stop: len(t.Order) + limit}
	for n := 0; c.Next < c.Ranges && !p.full && n < limit; n++ {
		if err := p.take(j); err != nil {
			return err
		}
	}
	watchLevel(t, i)
	if err := names.RaiseGeneration(t, i); err != nil {
		return err
	}
	tree.PutInode(t, i)
	return nil
}

// concatPiece is a piece in progress.
type concatPiece struct {
	*kvtx.Tx
	i    *record.Inode
	c    *record.ConcatJob
	stop int
	full bool // the piece has no room for the next table
	// The row with the present range.
	row    []record.ConcatRange
	rowKey []byte
}

// present returns the range to take next.
func (p *concatPiece) present(j *record.Job) (record.ConcatRange, error) {
	at := p.c.Next % record.ConcatRow
	if p.row == nil || at == 0 && p.c.Taken == 0 {
		p.rowKey = p.K.ConcatRow(j.Id, p.c.Next/record.ConcatRow)
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

// take lays as much of the present range as fits, and advances when it is complete.
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
	to := p.i.Size - p.c.Taken - lo // added to a source offset, gives the offset in the file
	err = layout.RefsFrom(&p.Tx.View, src.Content, lo+p.c.Taken, func(f record.Ref) (bool, error) {
		if f.Base >= hi {
			return false, nil
		}
		// Eviction and staging change tables but not the generation. Since the previous piece, a
		// table may have appeared that reaches back into the part already taken.
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
		// Do this even if only part of the range is laid. Before the next piece the
		// source may be evicted, and then has nothing in memory any more.
		level, err := layout.LevelBeside(&p.Tx.View, src)
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
		p.Del(p.rowKey)
	}
	return nil
}

// source returns the file of a range as it is now, and the range's length.
func (p *concatPiece) source(r record.ConcatRange) (*record.Inode, int64, error) {
	src, err := contentFile(p.Tx, "concat", uint64(r.Inode))
	if err != nil {
		return nil, 0, err
	}
	name := src.Id.String()
	want := r.Generation
	if want == 0 {
		want = p.c.Generation // 0 if nothing of it was taken yet
	}
	switch {
	case src.Tenant != p.i.Tenant:
		return nil, 0, kvtx.Fail(moraine.CrossTenant, "concat", name, "the source belongs to another tenant: copy it instead")
	case want != 0 && want != src.Generation:
		return nil, 0, kvtx.Fail(moraine.Stale, "concat", name, "the source has generation %d, but the request expects %d", src.Generation, want)
	case r.Offset > src.Size || r.Length > src.Size-r.Offset:
		return nil, 0, kvtx.Fail(moraine.InvalidArgument, "concat", name, "the source has %d bytes, and the range ends beyond them", src.Size)
	}
	length := r.Length
	if length == 0 {
		length = src.Size - r.Offset
	}
	if p.i.Size-p.c.Taken+length > tree.MaxFileSize {
		return nil, 0, kvtx.Fail(moraine.TooLarge, "concat", p.i.Id.String(), "the file would be larger than %d bytes", int64(tree.MaxFileSize))
	}
	return src, length, tree.RaiseStepOf(p.Tx, src)
}

// lay takes what one table of a source has in [lo, hi). It shares a table that is entirely in the
// range, and makes a new table of a part. If the piece has no room it sets full and does nothing;
// the first table of a piece always fits.
func (p *concatPiece) lay(f record.Ref, lo, hi, to int64) error {
	if f.Base >= lo && f.End <= hi {
		if p.isFull(2) {
			return nil
		}
		return shareTable(p.Tx, p.i, record.Ref{Table: f.Table, Base: f.Base + to, End: f.End + to})
	}
	all, err := layout.ExtsFrom(&p.Tx.View, f, f.Base, layout.NoLimit)
	if err != nil {
		return err
	}
	exts := layout.Cut(all, lo, hi)
	if len(exts) == 0 || p.isFull(2+2*len(exts)) {
		return nil
	}
	for n := range exts {
		exts[n].Offset += to
	}
	return layout.AddTable(p.Tx, p.i, exts)
}

// isFull reports whether that many more records are too many.
func (p *concatPiece) isFull(records int) bool {
	p.full = len(p.Order) > 0 && len(p.Order)+records > p.stop
	return p.full
}

// publishConcat names the file, in a piece of its own, so that earlier work is not lost if the name
// is refused.
func publishConcat(t *kvtx.Tx, j *record.Job, c *record.ConcatJob) error {
	i, err := tree.Inode(t, moraine.InodeID(j.Target))
	if err != nil {
		return kvtx.Damaged(err)
	}
	i.Mtime, i.Ctime = t.Now, t.Now
	if c.Mtime != 0 {
		i.Mtime = c.Mtime
	}
	l := &wire.LinkTarget{Parent: uint64(c.Parent), Name: c.Name, Replace: c.Replace, Expect: c.Expect}
	if err := nameConcat(t, i, l, uint64(c.Consume)); err != nil {
		return err
	}
	j.Generation = i.Generation
	if err := jobs.EndJob(t, j, wire.JobState_JOB_STATE_DONE, ""); err != nil {
		return err
	}
	// Check the quotas here. At the end of the command nobody would receive the error.
	t.IgnoresQuota = false
	err = usage.ApplyUsage(t)
	t.Usage.Reset()
	t.IgnoresQuota = true
	return err
}

// endConcat removes what a job built that will not be published.
func endConcat(t *kvtx.Tx, j *record.Job, limit int) (over bool, err error) {
	keys, err := t.KeysUnder(t.K.ConcatRows(j.Id), limit)
	if err != nil {
		return false, err
	}
	for _, key := range keys {
		t.Del(key)
	}
	if len(keys) == limit {
		return false, nil
	}
	i, err := tree.Inode(t, moraine.InodeID(j.Target))
	if err != nil {
		return false, kvtx.Damaged(err)
	}
	if err := names.DropFile(t, i); err != nil {
		return false, err
	}
	return true, jobs.EndJob(t, j, j.Ending, j.Err)
}
