package state

import (
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// concatJob is the cursor of a concatenation. The file is the job's target.
type concatJob struct {
	parent  moraine.InodeID // where the file is to appear
	name    string
	replace bool
	expect  *wire.Expect    // what must have the name then; nil: anything
	consume moraine.InodeID // directory that goes then; 0: none
	mtime   int64
	// Who asked: what the session may reach, and its files without a name.
	root    moraine.InodeID
	session moraine.SessionID

	ranges uint64 // in all
	next   uint64 // the first that is not consumed
	// Of that one: how many bytes are taken, and what of.
	taken      int64
	generation moraine.Generation
}

const concatVersion = 1

func (c *concatJob) encode() []byte {
	b := putString(putFixed64([]byte{concatVersion}, uint64(c.parent)), c.name)
	b = putFixed64(putFixed64(putBool(b, c.replace), uint64(c.consume)), uint64(c.mtime))
	b = putFixed64(putFixed64(b, uint64(c.root)), uint64(c.session))
	b = putUvarint(putUvarint(putUvarint(b, c.ranges), c.next), uint64(c.taken))
	b = putBool(putFixed64(b, uint64(c.generation)), c.expect != nil)
	if c.expect == nil {
		return b
	}
	return putFixed64(putFixed64(putFixed64(b, c.expect.Inode), c.expect.Generation), uint64(c.expect.Ctime))
}

func (c *concatJob) decode(b []byte) error {
	d := dec{b: b}
	d.version(concatVersion)
	c.parent, c.name, c.replace = moraine.InodeID(d.fixed64()), d.string(), d.bool()
	c.consume, c.mtime = moraine.InodeID(d.fixed64()), int64(d.fixed64())
	c.root, c.session = moraine.InodeID(d.fixed64()), moraine.SessionID(d.fixed64())
	c.ranges, c.next, c.taken = d.uvarint(), d.uvarint(), int64(d.uvarint())
	c.generation = moraine.Generation(d.fixed64())
	if d.bool() {
		c.expect = &wire.Expect{Inode: d.fixed64(), Generation: d.fixed64(), Ctime: int64(d.fixed64())}
	}
	return d.end("concatenation")
}

// concatRange is a range of a source; length 0: to its end.
type concatRange struct {
	inode          moraine.InodeID
	generation     moraine.Generation // 0: any
	offset, length int64
}

func encodeConcatRow(ranges []concatRange) []byte {
	b := putUvarint(append(make([]byte, 0, 3+24*len(ranges)), concatVersion), uint64(len(ranges)))
	for _, r := range ranges {
		b = putFixed64(putFixed64(b, uint64(r.inode)), uint64(r.generation))
		b = putUvarint(putUvarint(b, uint64(r.offset)), uint64(r.length))
	}
	return b
}

func decodeConcatRow(b []byte) ([]concatRange, error) {
	d := dec{b: b}
	d.version(concatVersion)
	n := d.count(18) // the least bytes of one
	if d.err == nil && (n == 0 || n > concatRow) {
		d.fail(errConcatRow)
	}
	out := make([]concatRange, 0, n)
	for range n {
		out = append(out, concatRange{moraine.InodeID(d.fixed64()), moraine.Generation(d.fixed64()), int64(d.uvarint()), int64(d.uvarint())})
	}
	return out, d.end("ranges of a concatenation")
}

var errConcatRow = errors.New("a row holds 1 to 256 ranges")

// addConcat makes the job, which owns the file from now on.
func (m *Machine) addConcat(t *tx, i *inode, op *wire.Concat) (*wire.MetaResponse, error) {
	owner, err := t.jobOwner("concat")
	if err != nil {
		return nil, err
	}
	l := op.GetLink()
	c := &concatJob{parent: moraine.InodeID(l.GetParent()), name: l.GetName(), replace: l.GetReplace(), expect: l.GetExpect(), consume: moraine.InodeID(op.GetConsume()),
		mtime: op.GetMtime(), root: t.scope.root, session: t.scope.session, ranges: uint64(len(op.GetRanges()))}
	id, err := m.addJob(t, jobSpec{kind: wire.JobKind_JOB_KIND_CONCAT, subject: clip(l.GetName(), moraine.MaxNameLen),
		target: uint64(i.id), cursor: c.encode(), total: c.ranges, owner: owner})
	if err != nil {
		return nil, err
	}
	var row []concatRange
	for n, r := range op.GetRanges() {
		if r.GetOffset() > MaxFileSize || r.GetLength() > MaxFileSize {
			return nil, fail(moraine.InvalidArgument, "concat", moraine.InodeID(r.GetInode()).String(), "the range is past the largest size of a file")
		}
		row = append(row, concatRange{moraine.InodeID(r.GetInode()), moraine.Generation(r.GetGeneration()), int64(r.GetOffset()), int64(r.GetLength())})
		if len(row) == concatRow || n == len(op.GetRanges())-1 {
			t.insert(t.k.concatRow(id, uint64(n)/concatRow), encodeConcatRow(row))
			row = row[:0]
		}
	}
	t.del(t.k.sessionInode(i.owner, i.id))
	i.owner = 0
	t.putInode(i)
	j, err := t.job(id)
	if err != nil {
		return nil, err
	}
	return jobsReply(j), nil
}

// runConcat does about limit records of a concatenation. It returns whether the
// job has ended; else it is to be written.
func (m *Machine) runConcat(t *tx, j *job, limit int) (over bool, err error) {
	if j.ending != 0 {
		return m.endConcat(t, j, limit)
	}
	c := &concatJob{}
	if err := c.decode(j.cursor); err != nil {
		return false, err
	}
	t.scope = scope{root: c.root, session: c.session}
	if c.next == c.ranges {
		err = m.publishConcat(t, j, c)
		over = err == nil
	} else {
		err = m.concatPiece(t, j, c, limit)
	}
	if err == nil || !isAnswer(err) {
		j.cursor = c.encode()
		return over, err
	}
	// What this piece did is undone, what those before it did goes next.
	t.reset()
	t.ignoresQuota = true
	was, jobErr := t.job(j.id)
	if jobErr != nil {
		return false, jobErr
	}
	*j = *was
	j.ending, j.err, j.why = wire.JobState_JOB_STATE_FAILED, clip(err.Error(), moraine.MaxNameLen), moraineKind(err)
	return false, nil
}

// concatPiece lays the next tables.
func (m *Machine) concatPiece(t *tx, j *job, c *concatJob, limit int) error {
	i, err := t.inode(moraine.InodeID(j.target))
	if err != nil {
		return damaged(err)
	}
	if i.stored == 0 && c.next == 0 && c.taken == 0 {
		i.level, i.degraded = moraine.NVMe, 0
	}
	p := &concatPiece{tx: t, m: m, i: i, c: c, stop: len(t.order) + limit}
	for n := 0; c.next < c.ranges && !p.full && n < limit; n++ {
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
	i    *inode
	c    *concatJob
	stop int
	full bool // the next table would be too much
	// The row that holds the present range.
	row    []concatRange
	rowKey []byte
}

// present returns the range whose turn it is.
func (p *concatPiece) present(j *job) (concatRange, error) {
	at := p.c.next % concatRow
	if p.row == nil || at == 0 && p.c.taken == 0 {
		p.rowKey = p.k.concatRow(j.id, p.c.next/concatRow)
		b, ok, err := p.Get(p.rowKey)
		if err != nil {
			return concatRange{}, err
		}
		if !ok {
			return concatRange{}, &moraine.Error{Op: "concat", Ref: j.id.String(), Kind: moraine.Corrupt, Err: errConcatRow}
		}
		if p.row, err = decodeConcatRow(b); err != nil {
			return concatRange{}, err
		}
	}
	if at >= uint64(len(p.row)) {
		return concatRange{}, &moraine.Error{Op: "concat", Ref: j.id.String(), Kind: moraine.Corrupt, Err: errConcatRow}
	}
	return p.row[at], nil
}

// take lays what there is room for of the present range, and passes it when it is
// whole.
func (p *concatPiece) take(j *job) error {
	r, err := p.present(j)
	if err != nil {
		return err
	}
	src, length, err := p.source(r)
	if err != nil {
		return err
	}
	lo, hi := r.offset, r.offset+length
	to := p.i.size - p.c.taken - lo // from a place in the source to one in the file
	err = p.refsFrom(src.content, lo+p.c.taken, func(f ref) (bool, error) {
		if f.base >= hi {
			return false, nil
		}
		// Eviction and staging change tables and no generation: since the piece before
		// this one the table may be one that reaches back into what is taken.
		if err := p.lay(f, lo+p.c.taken, hi, to); err != nil || p.full {
			return false, err
		}
		p.c.taken = min(f.end, hi) - lo
		return true, nil
	})
	if err != nil {
		return err
	}
	if src.stored > 0 && length > 0 {
		// Also where only a part of the range is laid: by the next piece the source may be
		// evicted, and have nothing in memory any more.
		level, err := p.levelBeside(src)
		if err != nil {
			return err
		}
		p.i.level = min(p.i.level, level)
	}
	if p.full {
		p.i.size, p.c.generation = lo+p.c.taken+to, src.generation
		return nil
	}
	p.i.size = hi + to
	if src.stored > 0 && length > 0 {
		p.i.degraded += src.degraded
	}
	p.c.next, p.c.taken, p.c.generation = p.c.next+1, 0, 0
	j.done++
	if p.c.next%concatRow == 0 || p.c.next == p.c.ranges {
		p.del(p.rowKey)
	}
	return nil
}

// source returns the file of a range as it is now, and the length of the range.
func (p *concatPiece) source(r concatRange) (*inode, int64, error) {
	src, err := p.contentFile("concat", uint64(r.inode))
	if err != nil {
		return nil, 0, err
	}
	name := src.id.String()
	want := r.generation
	if want == 0 {
		want = p.c.generation // 0 where none of it is taken yet
	}
	switch {
	case src.tenant != p.i.tenant:
		return nil, 0, fail(moraine.CrossTenant, "concat", name, "copy it instead")
	case want != 0 && want != src.generation:
		return nil, 0, fail(moraine.Stale, "concat", name, "generation is %d, not %d", src.generation, want)
	case r.offset > src.size || r.length > src.size-r.offset:
		return nil, 0, fail(moraine.InvalidArgument, "concat", name, "the file has %d bytes, the range ends past them", src.size)
	}
	length := r.length
	if length == 0 {
		length = src.size - r.offset
	}
	if p.i.size-p.c.taken+length > MaxFileSize {
		return nil, 0, fail(moraine.TooLarge, "concat", p.i.id.String(), "more than %d bytes", int64(MaxFileSize))
	}
	return src, length, nil
}

// lay takes what one table of a source has in [lo, hi): shared where that is all
// of it, else a table of its own. full is set, and nothing done, where the piece
// has no room for it; a piece that did nothing yet has.
func (p *concatPiece) lay(f ref, lo, hi, to int64) error {
	if f.base >= lo && f.end <= hi {
		if p.isFull(2) {
			return nil
		}
		return p.m.shareTable(p.tx, p.i, ref{table: f.table, base: f.base + to, end: f.end + to})
	}
	all, err := p.extsFrom(f, f.base, noLimit)
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
func (m *Machine) publishConcat(t *tx, j *job, c *concatJob) error {
	i, err := t.inode(moraine.InodeID(j.target))
	if err != nil {
		return damaged(err)
	}
	i.mtime, i.ctime = t.now, t.now
	if c.mtime != 0 {
		i.mtime = c.mtime
	}
	l := &wire.LinkTarget{Parent: uint64(c.parent), Name: c.name, Replace: c.replace, Expect: c.expect}
	if err := m.nameConcat(t, i, l, uint64(c.consume)); err != nil {
		return err
	}
	j.generation = i.generation
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
func (m *Machine) endConcat(t *tx, j *job, limit int) (over bool, err error) {
	keys, err := t.keysUnder(t.k.concatRows(j.id), limit)
	if err != nil {
		return false, err
	}
	for _, key := range keys {
		t.del(key)
	}
	if len(keys) == limit {
		return false, nil
	}
	i, err := t.inode(moraine.InodeID(j.target))
	if err != nil {
		return false, damaged(err)
	}
	if err := m.dropFile(t, i); err != nil {
		return false, err
	}
	return true, m.endJob(t, j, j.ending, j.err)
}
