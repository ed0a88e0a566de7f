package state

import (
	"errors"
	"fmt"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// MaxObjectKey is the longest key of an object, in bytes: that of S3.
	MaxObjectKey = 1024
	// maxBucket is the longest name of a bucket, in bytes.
	maxBucket = 255
	// sumsPerBlock is how many sums of pieces one record holds.
	sumsPerBlock = 1024
	// MaxPieces is the most pieces of one object: all blocks of sums go in one
	// command.
	MaxPieces = sumsPerBlock * 1024
	// maxToken bounds what a store names things by: ETags, versions, uploads.
	maxToken = 1024
)

// place is where an object is, or is to be.
type place struct{ bucket, key string }

func (p place) String() string         { return "s3://" + p.bucket + "/" + p.key }
func (p place) len() int               { return len(p.bucket) + 1 + len(p.key) }
func (p place) append(b []byte) []byte { return append(append(append(b, p.bucket...), 0), p.key...) }
func placeOfKey(rest []byte) (p place) {
	p.bucket, p.key, _ = strings.Cut(string(rest), "\x00")
	return p
}

func (p place) check(op string) error {
	switch {
	case p.bucket == "" || p.key == "":
		return fail(moraine.InvalidArgument, op, p.String(), "bucket and key are needed")
	case len(p.bucket) > maxBucket || len(p.key) > MaxObjectKey:
		return fail(moraine.NameTooLong, op, p.String(), "a key has %d bytes at most", MaxObjectKey)
	case strings.IndexByte(p.bucket, 0) >= 0 || strings.IndexByte(p.key, 0) >= 0:
		return fail(moraine.InvalidArgument, op, p.String(), "a key holds no NUL")
	}
	return nil
}

// object is the record of one object: what bytes of which generation of which
// file are at its key. The bytes never change; the key may.
type object struct {
	id         moraine.ObjectID // in the key
	at         place
	version    string // of a versioned bucket
	etag       string
	size       uint64
	crc        uint32
	inode      moraine.InodeID // it was made from
	generation moraine.Generation
	// refs counts the extent tables that refer to it, and its inode while it is
	// the newest object made of that. At 0 it is to be deleted, by job.
	refs   uint32
	newest bool
	piece  uint64
	tenant moraine.Tenant
	kept   bool
	job    moraine.JobID
	// verified says how the bytes at the key were compared with those of the file.
	verified wire.Verified
}

const objectVersion = 1

func (o *object) encode() []byte {
	b := make([]byte, 0, 96+o.at.len()+len(o.version)+len(o.etag))
	b = putString(append(b, objectVersion), o.at.bucket)
	b = putString(b, o.at.key)
	b = putString(b, o.version)
	b = putString(b, o.etag)
	b = putUvarint(b, o.size)
	b = putFixed32(b, o.crc)
	b = putFixed64(b, uint64(o.inode))
	b = putFixed64(b, uint64(o.generation))
	b = putUvarint(b, uint64(o.refs))
	b = putBool(b, o.newest)
	b = putUvarint(b, o.piece)
	b = putUvarint(b, uint64(o.tenant))
	b = putBool(b, o.kept)
	return append(putFixed64(b, uint64(o.job)), byte(o.verified))
}

func (o *object) decode(b []byte) error {
	d := dec{b: b}
	d.version(objectVersion)
	o.at = place{d.string(), d.string()}
	o.version = d.string()
	o.etag = d.string()
	o.size = d.uvarint()
	o.crc = d.fixed32()
	o.inode = moraine.InodeID(d.fixed64())
	o.generation = moraine.Generation(d.fixed64())
	o.refs = d.u32()
	o.newest = d.bool()
	o.piece = d.uvarint()
	o.tenant = moraine.Tenant(d.u32())
	o.kept = d.bool()
	o.job = moraine.JobID(d.fixed64())
	o.verified = wire.Verified(d.byte())
	return d.end("object")
}

func (o *object) toWire() *wire.Object {
	return &wire.Object{
		Id: uint64(o.id), Bucket: o.at.bucket, Key: o.at.key, Version: o.version, Etag: o.etag, Size: o.size, Crc: o.crc,
		Inode: uint64(o.inode), Generation: uint64(o.generation), RefCount: o.refs, Piece: o.piece, Tenant: uint32(o.tenant), Kept: o.kept,
		Verified: o.verified,
	}
}

// tables is how many extent tables refer to the object.
func (o *object) tables() uint32 {
	if o.newest {
		return o.refs - 1
	}
	return o.refs
}

// pieces is how many sums the object has.
func (o *object) pieces() uint64 {
	if o.piece == 0 {
		return 0
	}
	return (o.size + o.piece - 1) / o.piece
}

// object returns an object's record; nil where there is none.
func (v *view) object(id moraine.ObjectID) (*object, error) {
	b, ok, err := v.r.Get(v.k.object(id))
	if err != nil || !ok {
		return nil, err
	}
	o := &object{id: id}
	return o, o.decode(b)
}

// mustObject returns an object that another record refers to.
func (v *view) mustObject(id moraine.ObjectID) (*object, error) {
	o, err := v.object(id)
	if err == nil && o == nil {
		err = &moraine.Error{Op: "object", Ref: id.String(), Kind: moraine.Corrupt, Err: fmt.Errorf("a record refers to it and it has none")}
	}
	return o, err
}

func (t *tx) putObject(o *object) { t.put(t.k.object(o.id), o.encode()) }

// useObject counts one more table that refers to an object.
func (t *tx) useObject(id moraine.ObjectID) error {
	o, err := t.mustObject(id)
	if err != nil {
		return err
	}
	o.refs++
	t.putObject(o)
	return nil
}

// releaseObject counts one user less; at 0 a job deletes the object.
func (m *Machine) releaseObject(t *tx, id moraine.ObjectID) error {
	o, err := t.mustObject(id)
	if err != nil {
		return err
	}
	return m.release1(t, o, false)
}

// releaseNewest notes that an object is not the newest of its inode any more.
// The caller writes the inode.
func (m *Machine) releaseNewest(t *tx, i *inode) error {
	o, err := t.mustObject(i.object)
	if err != nil {
		return err
	}
	i.object, i.objectGen = 0, 0
	return m.release1(t, o, true)
}

func (m *Machine) release1(t *tx, o *object, newest bool) (err error) {
	o.refs--
	if newest {
		o.newest = false
	}
	if o.refs == 0 {
		if err := t.forgetBad(o); err != nil {
			return err
		}
		err = m.condemn(t, o, 0)
	}
	t.putObject(o)
	return err
}

// condemn has a job delete an object that nothing refers to, not before a
// cluster time. The caller writes the object.
func (m *Machine) condemn(t *tx, o *object, after uint64) (err error) {
	o.job, err = m.addJob(t, jobSpec{kind: wire.JobKind_JOB_KIND_DELETE_OBJECT, subject: clip(o.at.key, moraine.MaxNameLen),
		target: uint64(o.id), after: after})
	return err
}

// dropObject takes an object's record and its sums away: its bytes are gone, or
// others are in their place. The key is the caller's. The job that was to
// delete it is over.
func (m *Machine) dropObject(t *tx, o *object) error {
	if err := t.forgetBad(o); err != nil {
		return err
	}
	t.del(t.k.object(o.id))
	t.count[cObjects]--
	t.count[cObjectBytes] -= o.size
	if err := t.dropSums(o.id); err != nil {
		return err
	}
	if o.job == 0 {
		return nil
	}
	j, err := t.job(o.job)
	if err != nil || j == nil || j.state != wire.JobState_JOB_STATE_PENDING {
		return err // who holds it finds the object gone
	}
	return m.endJob(t, j, wire.JobState_JOB_STATE_DONE, "")
}

// Sums of the pieces of an object, in blocks.

func encodeSums(sums []uint32) []byte {
	b := putUvarint(append(make([]byte, 0, 4+4*len(sums)), objectVersion), uint64(len(sums)))
	for _, s := range sums {
		b = putFixed32(b, s)
	}
	return b
}

func decodeSums(b []byte) ([]uint32, error) {
	d := dec{b: b}
	d.version(objectVersion)
	var sums []uint32
	n := d.count(4)
	if n == 0 || n > sumsPerBlock {
		d.fail(errors.New("a block has 1 to 1,024 sums"))
	}
	for range n {
		sums = append(sums, d.fixed32())
	}
	return sums, d.end("sums of pieces")
}

func (v *view) sums(id moraine.ObjectID, block uint64) ([]uint32, error) {
	b, ok, err := v.r.Get(v.k.objectSum(id, block))
	if err != nil || !ok {
		return nil, err
	}
	return decodeSums(b)
}

// dropSums forgets all sums of an object.
func (t *tx) dropSums(id moraine.ObjectID) error {
	keys, err := t.keysUnder(t.k.objectSums(id), MaxPieces/sumsPerBlock)
	for _, key := range keys {
		t.del(key)
	}
	return err
}

// owner says whose a key is.
type owner struct {
	at     place
	object moraine.ObjectID // that is there, 0 for none
	job    moraine.JobID    // whose intent changes it, 0 for none
	// until is the cluster time up to which a change may still arrive whose end
	// nobody saw; 0 where there is none.
	until uint64
}

func (w *owner) encode() []byte {
	b := putFixed64([]byte{objectVersion}, uint64(w.object))
	return putUvarint(putFixed64(b, uint64(w.job)), w.until)
}

func (w *owner) decode(b []byte) error {
	d := dec{b: b}
	d.version(objectVersion)
	w.object, w.job = moraine.ObjectID(d.fixed64()), moraine.JobID(d.fixed64())
	w.until = d.uvarint()
	return d.end("owner of a key")
}

// owner returns whose a key is; a zero one where it is nobody's.
func (v *view) owner(p place) (*owner, error) {
	w := &owner{at: p}
	b, ok, err := v.r.Get(v.k.objectKey(p))
	if err != nil || !ok {
		return w, err
	}
	return w, w.decode(b)
}

// putOwner writes whose a key is, which may be nobody.
func (t *tx) putOwner(w *owner) error {
	if w.object != 0 || w.job != 0 || w.until != 0 {
		t.put(t.k.objectKey(w.at), w.encode())
		return nil
	}
	t.del(t.k.objectKey(w.at))
	index, ok, err := t.removedIndexBeside(w.at)
	if ok && index == w.at {
		t.del(t.k.removedIndex(w.at.beside()))
	}
	return err
}

// settled fails with Conflict where a change of the key by another job than j
// is under way, or may still arrive.
func (w *owner) settled(op string, j moraine.JobID, now uint64) error {
	switch {
	case w.job != 0 && w.job != j:
		return fail(moraine.Conflict, op, w.at.String(), "job %s changes the key", w.job)
	case w.until > now:
		return fail(moraine.Conflict, op, w.at.String(), "a change whose reply was not seen may still arrive for %d s", (w.until-now+999)/1000)
	}
	return nil
}
