package record

import (
	"errors"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// MaxObjectKey is the longest key of an object, in bytes: that of S3.
	MaxObjectKey = 1024
	// MaxBucket is the longest name of a bucket, in bytes.
	MaxBucket = 255
	// SumsPerBlock is how many sums of pieces one record holds.
	SumsPerBlock = 1024
	// MaxPieces is the most pieces of one object: all blocks of sums go in one
	// command.
	MaxPieces = SumsPerBlock * 1024
	// MaxToken bounds what a store names things by: ETags, versions, uploads.
	MaxToken = 1024
)

// Place is where an object is, or is to be.
type Place struct{ Bucket, Key string }

func (p Place) String() string { return "s3://" + p.Bucket + "/" + p.Key }

func (p Place) Len() int { return len(p.Bucket) + 1 + len(p.Key) }

func (p Place) Append(b []byte) []byte { return append(append(append(b, p.Bucket...), 0), p.Key...) }

// Object is the record of one object: what bytes of which generation of which
// file are at its key. The bytes never change; the key may.
type Object struct {
	Id         moraine.ObjectID // in the key
	At         Place
	Version    string // of a versioned bucket
	Etag       string
	Size       uint64
	Crc        uint32
	Inode      moraine.InodeID // it was made from
	Generation moraine.Generation
	// refs counts the extent tables that refer to it, and its inode while it is
	// the newest object made of that. At 0 it is to be deleted, by job.
	Refs   uint32
	Newest bool
	Piece  uint64
	Tenant moraine.Tenant
	Kept   bool
	Job    moraine.JobID
	// verified says how the bytes at the key were compared with those of the file.
	Verified wire.Verified
}

const ObjectVersion = 1

func (o *Object) Encode() []byte {
	b := make([]byte, 0, 96+o.At.Len()+len(o.Version)+len(o.Etag))
	b = PutString(append(b, ObjectVersion), o.At.Bucket)
	b = PutString(b, o.At.Key)
	b = PutString(b, o.Version)
	b = PutString(b, o.Etag)
	b = PutUvarint(b, o.Size)
	b = PutFixed32(b, o.Crc)
	b = PutFixed64(b, uint64(o.Inode))
	b = PutFixed64(b, uint64(o.Generation))
	b = PutUvarint(b, uint64(o.Refs))
	b = putBool(b, o.Newest)
	b = PutUvarint(b, o.Piece)
	b = PutUvarint(b, uint64(o.Tenant))
	b = putBool(b, o.Kept)
	return append(PutFixed64(b, uint64(o.Job)), byte(o.Verified))
}

func (o *Object) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(ObjectVersion)
	o.At = Place{d.string(), d.string()}
	o.Version = d.string()
	o.Etag = d.string()
	o.Size = d.Uvarint()
	o.Crc = d.fixed32()
	o.Inode = moraine.InodeID(d.Fixed64())
	o.Generation = moraine.Generation(d.Fixed64())
	o.Refs = d.U32()
	o.Newest = d.bool()
	o.Piece = d.Uvarint()
	o.Tenant = moraine.Tenant(d.U32())
	o.Kept = d.bool()
	o.Job = moraine.JobID(d.Fixed64())
	o.Verified = wire.Verified(d.Byte())
	return d.End("object")
}

func (o *Object) ToWire() *wire.Object {
	return &wire.Object{
		Id: uint64(o.Id), Bucket: o.At.Bucket, Key: o.At.Key, Version: o.Version, Etag: o.Etag, Size: o.Size, Crc: o.Crc,
		Inode: uint64(o.Inode), Generation: uint64(o.Generation), RefCount: o.Refs, Piece: o.Piece, Tenant: uint32(o.Tenant), Kept: o.Kept,
		Verified: o.Verified,
	}
}

// Tables is how many extent tables refer to the object.
func (o *Object) Tables() uint32 {
	if o.Newest {
		return o.Refs - 1
	}
	return o.Refs
}

// Pieces is how many sums the object has.
func (o *Object) Pieces() uint64 {
	if o.Piece == 0 {
		return 0
	}
	return (o.Size + o.Piece - 1) / o.Piece
}

// Sums of the pieces of an object, in blocks.

func EncodeSums(sums []uint32) []byte {
	b := PutUvarint(append(make([]byte, 0, 4+4*len(sums)), ObjectVersion), uint64(len(sums)))
	for _, s := range sums {
		b = PutFixed32(b, s)
	}
	return b
}

func DecodeSums(b []byte) ([]uint32, error) {
	d := Dec{B: b}
	d.Version(ObjectVersion)
	var sums []uint32
	n := d.Count(4)
	if n == 0 || n > SumsPerBlock {
		d.fail(errors.New("a block has 1 to 1,024 sums"))
	}
	for range n {
		sums = append(sums, d.fixed32())
	}
	return sums, d.End("sums of pieces")
}

// Owner says whose a key is.
type Owner struct {
	At     Place
	Object moraine.ObjectID // that is there, 0 for none
	Job    moraine.JobID    // whose intent changes it, 0 for none
	// until is the cluster time up to which a change may still arrive whose end
	// nobody saw; 0 where there is none.
	Until uint64
}

func (w *Owner) Encode() []byte {
	b := PutFixed64([]byte{ObjectVersion}, uint64(w.Object))
	return PutUvarint(PutFixed64(b, uint64(w.Job)), w.Until)
}

func (w *Owner) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(ObjectVersion)
	w.Object, w.Job = moraine.ObjectID(d.Fixed64()), moraine.JobID(d.Fixed64())
	w.Until = d.Uvarint()
	return d.End("owner of a key")
}

// A bucket that has the index of a checkpoint has all of it, also while the checkpoint is
// being removed: the objects of its other files are deleted once the store has confirmed that
// the index's is gone. A row says of the directory of a bucket, as keys have it, which key in
// it is the index of a removed checkpoint; the row goes when that key is nobody's any more.

const removedIndexVersion = 1

// Beside is the directory that a key is in.
func (p Place) Beside() Place {
	return Place{p.Bucket, p.Key[:strings.LastIndexByte(p.Key, '/')+1]}
}

// EncodeRemovedIndex returns the row of a directory: the key of the index in it.
func EncodeRemovedIndex(key string) []byte {
	return PutString(newValue(removedIndexVersion, 2+len(key)), key)
}

func DecodeRemovedIndex(b []byte) (key string, err error) {
	d := Dec{B: b}
	d.Version(removedIndexVersion)
	key = d.string()
	return key, d.End("removed index")
}
