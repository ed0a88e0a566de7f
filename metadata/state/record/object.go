package record

import (
	"errors"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// MaxObjectKey is the longest key of an object in bytes, as in S3.
	MaxObjectKey = 1024
	// MaxBucket is the longest name of a bucket, in bytes.
	MaxBucket = 255
	// SumsPerBlock is the number of piece checksums in one record.
	SumsPerBlock = 1024
	// MaxPieces is the largest number of pieces of one object. One command writes all blocks of
	// checksums.
	MaxPieces = SumsPerBlock * 1024
	// MaxToken bounds the store's identifiers, such as ETags, versions and upload IDs, in bytes.
	MaxToken = 1024
)

// Place is a bucket and a key in it.
type Place struct{ Bucket, Key string }

// String returns the place as a URL.
func (p Place) String() string { return "s3://" + p.Bucket + "/" + p.Key }

// Len returns the length of the place in a key, in bytes.
func (p Place) Len() int { return len(p.Bucket) + 1 + len(p.Key) }

// Append appends the place to a key.
func (p Place) Append(b []byte) []byte { return append(append(append(b, p.Bucket...), 0), p.Key...) }

// Object is the record of one object: the bytes of one generation of one file, and their place. The
// bytes never change; the key may.
type Object struct {
	Id         moraine.ObjectID // in the key
	At         Place
	Version    string // in a versioned bucket
	Etag       string
	Size       uint64
	Crc        uint32
	Inode      moraine.InodeID // the file that it was made from
	Generation moraine.Generation
	// Refs is the number of extent tables that refer to the object, plus one while it is its
	// inode's newest object. At 0 a job deletes the object.
	Refs   uint32
	Newest bool
	Piece  uint64
	Tenant moraine.Tenant
	Kept   bool
	Job    moraine.JobID
	// Verified says how the object's bytes were compared with the file's.
	Verified wire.Verified
}

const ObjectVersion = 1

// Encode returns the stored value.
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

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
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

// ToWire returns the wire form.
func (o *Object) ToWire() *wire.Object {
	return &wire.Object{
		Id: uint64(o.Id), Bucket: o.At.Bucket, Key: o.At.Key, Version: o.Version, Etag: o.Etag, Size: o.Size, Crc: o.Crc,
		Inode: uint64(o.Inode), Generation: uint64(o.Generation), RefCount: o.Refs, Piece: o.Piece, Tenant: uint32(o.Tenant), Kept: o.Kept,
		Verified: o.Verified,
	}
}

// Tables returns the number of extent tables that refer to the object.
func (o *Object) Tables() uint32 {
	if o.Newest {
		return o.Refs - 1
	}
	return o.Refs
}

// Pieces returns the number of pieces, and so of checksums.
func (o *Object) Pieces() uint64 {
	if o.Piece == 0 {
		return 0
	}
	return (o.Size + o.Piece - 1) / o.Piece
}

// Piece checksums of an object, in blocks.

// EncodeSums returns the stored value of a block of checksums.
func EncodeSums(sums []uint32) []byte {
	b := PutUvarint(append(make([]byte, 0, 4+4*len(sums)), ObjectVersion), uint64(len(sums)))
	for _, s := range sums {
		b = PutFixed32(b, s)
	}
	return b
}

// DecodeSums decodes a block of checksums.
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

// Owner says which object and job a key belongs to.
type Owner struct {
	At     Place
	Object moraine.ObjectID // the object there; 0 for none
	Job    moraine.JobID    // the job whose intent changes it; 0 for none
	// Until is the cluster time until which a change may still arrive because nobody saw its end; 0
	// if there is none.
	Until uint64
}

// Encode returns the stored value.
func (w *Owner) Encode() []byte {
	b := PutFixed64([]byte{ObjectVersion}, uint64(w.Object))
	return PutUvarint(PutFixed64(b, uint64(w.Job)), w.Until)
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (w *Owner) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(ObjectVersion)
	w.Object, w.Job = moraine.ObjectID(d.Fixed64()), moraine.JobID(d.Fixed64())
	w.Until = d.Uvarint()
	return d.End("owner of a key")
}

// A bucket with the index of a checkpoint has the whole checkpoint, also during its removal. The
// other objects are deleted only after the store confirms that the index is gone. A row for a
// directory of the bucket has the key of a removed checkpoint's index; the row goes when that key
// has no owner any more.

const removedIndexVersion = 1

// Beside returns the directory of a key.
func (p Place) Beside() Place {
	return Place{p.Bucket, p.Key[:strings.LastIndexByte(p.Key, '/')+1]}
}

// EncodeRemovedIndex returns the row of a directory: the key of the removed index in it.
func EncodeRemovedIndex(key string) []byte {
	return PutString(newValue(removedIndexVersion, 2+len(key)), key)
}

// DecodeRemovedIndex decodes the key of a removed index.
func DecodeRemovedIndex(b []byte) (key string, err error) {
	d := Dec{B: b}
	d.Version(removedIndexVersion)
	key = d.string()
	return key, d.End("removed index")
}
