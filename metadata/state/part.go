package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// MaxPartFiles is the most files of one rank's part.
const MaxPartFiles = 64

// part is what one rank has put into a checkpoint.
type part struct {
	session moraine.SessionID // that began it
	sealed  bool
	digest  [sha256.Size]byte
	files   []partFile
}

type partFile struct {
	inode moraine.InodeID
	name  string
	crc   uint32
	size  uint64
}

const partVersion = 1

func (p *part) encode() []byte {
	b := putFixed64([]byte{partVersion}, uint64(p.session))
	b = putBool(b, p.sealed)
	if !p.sealed {
		return b
	}
	b = append(b, p.digest[:]...)
	b = putUvarint(b, uint64(len(p.files)))
	for _, f := range p.files {
		b = putFixed64(b, uint64(f.inode))
		b = putString(b, f.name)
		b = putFixed32(b, f.crc)
		b = putUvarint(b, f.size)
	}
	return b
}

func (p *part) decode(b []byte) error {
	d := dec{b: b}
	d.version(partVersion)
	p.session = moraine.SessionID(d.fixed64())
	p.sealed = d.bool()
	if p.sealed {
		for i := range p.digest {
			p.digest[i] = d.byte()
		}
		for range d.count(14) {
			p.files = append(p.files, partFile{moraine.InodeID(d.fixed64()), d.string(), d.fixed32(), d.uvarint()})
		}
	}
	return d.end("part")
}

func (p *part) equal(o *part) bool { return p.digest == o.digest && slices.Equal(p.files, o.files) }

func (p *part) toWire(rank uint32) *wire.Part {
	w := &wire.Part{Rank: rank, Digest: p.digest[:]}
	for _, f := range p.files {
		w.Files = append(w.Files, &wire.PartFile{Inode: uint64(f.inode), Name: f.name, Crc: f.crc, Size: f.size})
	}
	return w
}

// partRecord returns a rank's part; nil where the rank has not begun.
func (v *view) partRecord(id stepID, rank uint32) (*part, error) {
	b, ok, err := v.r.Get(v.k.part(id, rank))
	if err != nil || !ok {
		return nil, err
	}
	p := &part{}
	return p, p.decode(b)
}

// partFromWire checks what a rank seals.
func partFromWire(op *wire.SealPart, session moraine.SessionID) (*part, error) {
	id := stepFromWire(op.GetKey())
	bad := func(format string, args ...any) (*part, error) {
		return nil, fail(moraine.InvalidArgument, "seal part", id.String(), format, args...)
	}
	if len(op.GetDigest()) != sha256.Size {
		return bad("a digest has %d bytes, not %d", sha256.Size, len(op.GetDigest()))
	}
	if len(op.GetFiles()) > MaxPartFiles {
		return bad("%d files, %d at most", len(op.GetFiles()), MaxPartFiles)
	}
	p := &part{session: session, sealed: true, digest: [sha256.Size]byte(op.GetDigest())}
	for _, f := range op.GetFiles() {
		if err := checkName("seal part", f.GetName()); err != nil {
			return nil, err
		}
		p.files = append(p.files, partFile{moraine.InodeID(f.GetInode()), f.GetName(), f.GetCrc(), f.GetSize()})
	}
	return p, nil
}

// sealPart completes a rank's part: its files get their names in the step's
// directory. The last one seals the step, and makes the job that checks it. The
// same seal again is answered as it was; another one is a Conflict.
func (m *Machine) sealPart(t *tx, op *wire.SealPart) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	if _, _, err := t.presentRun("seal part", id); err != nil {
		return nil, err
	}
	p, err := partFromWire(op, t.session.id)
	if err != nil {
		return nil, err
	}
	s, err := t.stepRecord(id)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, fail(moraine.NotFound, "seal part", id.String(), "the step was not begun")
	}
	if s.state == stepAborted {
		return nil, fail(moraine.Aborted, "seal part", id.String(), "%s", s.reason)
	}
	have, err := t.partRecord(id, op.GetRank())
	if err != nil {
		return nil, err
	}
	switch {
	case have == nil:
		return nil, fail(moraine.InvalidArgument, "seal part", id.String(), "rank %d has not begun", op.GetRank())
	case have.sealed && have.equal(p):
		return stepReply(s), nil
	case have.sealed:
		return nil, fail(moraine.Conflict, "seal part", id.String(), "rank %d has sealed another part", op.GetRank())
	case have.session != t.session.id:
		return nil, fail(moraine.Fenced, "seal part", id.String(), "rank %d has begun again elsewhere", op.GetRank())
	case s.state != stepOpen:
		return nil, &moraine.Error{Op: "seal part", Ref: id.String(), Kind: moraine.Corrupt}
	}
	if err := m.takeFiles(t, s, p.files); err != nil {
		return nil, err
	}
	if protects := op.GetProtects(); s.sealed == 0 || protects < s.protects {
		s.protects = protects
	}
	s.sealed++
	s.lastSeal = t.clusterTime()
	t.del(t.k.sessionStep(t.session.id, id, op.GetRank()))
	t.put(t.k.part(id, op.GetRank()), p.encode())
	if err := m.countSeal(t, s, op.GetRank()); err != nil {
		return nil, err
	}
	if s.sealed == s.world {
		if err := m.sealStep(t, s); err != nil {
			return nil, err
		}
	}
	t.putStep(s)
	t.stepChanged(id)
	return stepReply(s), nil
}

// takeFiles links unlinked files of the session into the step's directory, and
// adds up what they are.
func (m *Machine) takeFiles(t *tx, s *step, files []partFile) error {
	dir, err := t.inode(s.dir)
	if err != nil {
		return damaged(err)
	}
	t.open(dir)
	for _, f := range files {
		i, err := t.inode(f.inode)
		if err != nil {
			return err
		}
		ref := s.id.String() + "/" + f.name
		switch {
		case i.typ != typeFile || i.owner == 0 || i.owner != t.session.id:
			return fail(moraine.InvalidArgument, "seal part", ref, "inode %s is no unlinked file of the session", i.id)
		case uint64(i.size) != f.size:
			return fail(moraine.InvalidArgument, "seal part", ref, "the file has %d bytes, not %d", i.size, f.size)
		case i.tenant != dir.tenant:
			return fail(moraine.CrossTenant, "seal part", ref, "")
		}
		if i.lost() {
			return fail(moraine.Lost, "seal part", ref, "bytes of the file were in memory alone, and are gone")
		}
		_, taken, err := t.lookup(dir.id, f.name)
		if err != nil {
			return err
		}
		if taken {
			return fail(moraine.Exists, "seal part", ref, "")
		}
		m.adopt(t, i)
		m.link(t, dir, f.name, i)
		i.ctime, i.sealed = t.now, true
		t.putInode(i)
		s.bytes += f.size
		s.degraded += i.degraded
		if i.content != 0 && (s.level == 0 || i.level < s.level) {
			s.level = i.level
		}
	}
	return nil
}

// sealStep seals the step: all its ranks have, and a worker is to check it. The
// caller writes it.
func (m *Machine) sealStep(t *tx, s *step) error {
	h := sha256.New()
	for n := range s.blocks() {
		b, err := t.stepBlock(s, n)
		if err != nil {
			return err
		}
		h.Write(b.digest)
	}
	s.state, s.digest = stepSealed, h.Sum(nil)
	t.del(t.k.openStep(s.id))
	var err error
	s.job, err = m.addJob(t, jobSpec{
		kind: wire.JobKind_JOB_KIND_COMMIT_STEP, subject: s.id.String(), step: s.id, total: uint64(s.world),
	})
	return err
}

// readParts lists the sealed parts of a checkpoint, by rank.
func (v *view) readParts(sc scope, op *wire.ListParts) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	if _, _, err := v.runInScope(sc, "list parts", id.run); err != nil {
		return nil, err
	}
	reply := &wire.PartsReply{}
	limit := pageLimit(op.GetLimit())
	var bad error
	err := v.r.Scan(v.k.part(id, op.GetAfter()), prefixEnd(v.k.parts(id)), func(key, value []byte) bool {
		var p part
		if bad = p.decode(value); bad != nil {
			return false
		}
		if !p.sealed {
			return true
		}
		if reply.More = len(reply.Parts) == limit; reply.More {
			return false
		}
		reply.Parts = append(reply.Parts, p.toWire(binary.BigEndian.Uint32(key[len(key)-4:])))
		return true
	})
	if err == nil {
		err = bad
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Parts{Parts: reply}}, err
}

// sessionGone does what the end of a session means to checkpoints: a step that
// waits for a rank of it will never be complete, and is aborted; and the
// session leaves the attempts that it joined.
func (m *Machine) sessionGone(t *tx, id moraine.SessionID, budget int) (int, error) {
	const cost = 8 // records that one rank may take, or a step of it
	most := (budget + cost - 1) / cost
	keys, err := t.keysUnder(t.k.sessionSteps(id), most)
	if err != nil {
		return 0, err
	}
	spent := cost * len(keys)
	more := len(keys) == most
	for len(keys) > 0 {
		group := keys[0][:len(keys[0])-4]
		n := 1
		for n < len(keys) && bytes.Equal(keys[n][:len(keys[n])-4], group) {
			n++
		}
		if err := m.ranksGone(t, id, stepOfKey(group), keys[:n]); err != nil {
			return 0, err
		}
		keys = keys[n:]
	}
	if more || spent >= budget {
		return budget, nil
	}
	left, err := m.leaveAttempts(t, id, budget-spent)
	return spent + left, err
}

// ranksGone aborts a step that waits for ranks of an ended session.
func (m *Machine) ranksGone(t *tx, id moraine.SessionID, of stepID, keys [][]byte) error {
	why := ""
	for _, key := range keys {
		t.del(key)
		rank := binary.BigEndian.Uint32(key[len(key)-4:])
		p, err := t.partRecord(of, rank)
		if err != nil {
			return err
		}
		if p == nil || p.sealed || p.session != id {
			continue
		}
		if why == "" {
			why = "rank " + utoa(uint64(rank))
		} else {
			why += ", " + utoa(uint64(rank))
		}
	}
	s, err := t.stepRecord(of)
	if err != nil || s == nil || s.state != stepOpen || why == "" {
		return err
	}
	return m.abortStepRecord(t, s, "the session of "+clip(why, 150)+" ended before it sealed")
}
