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

func (p *Place) fields(c *codec) {
	c.string(&p.Bucket)
	c.string(&p.Key)
}

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
	return o.fields(encoder(96 + o.At.Len() + len(o.Version) + len(o.Etag))).B
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (o *Object) Decode(b []byte) error { return o.fields(decoder(b)).End("object") }

func (o *Object) fields(c *codec) *codec {
	c.version(ObjectVersion)
	o.At.fields(c)
	c.string(&o.Version)
	c.string(&o.Etag)
	uvarint(c, &o.Size)
	c.fixed32(&o.Crc)
	fixed64(c, &o.Inode)
	fixed64(c, &o.Generation)
	uvarint(c, &o.Refs)
	c.bool(&o.Newest)
	uvarint(c, &o.Piece)
	uvarint(c, &o.Tenant)
	c.bool(&o.Kept)
	fixed64(c, &o.Job)
	oneByte(c, &o.Verified)
	return c
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
func EncodeSums(sums []uint32) []byte { return sumsFields(encoder(4+4*len(sums)), &sums).B }

// DecodeSums decodes a block of checksums.
func DecodeSums(b []byte) (sums []uint32, err error) {
	err = sumsFields(decoder(b), &sums).End("sums of pieces")
	return sums, err
}

func sumsFields(c *codec, p *[]uint32) *codec {
	c.version(ObjectVersion)
	sums := list(c, p, 4)
	if len(sums) == 0 || len(sums) > SumsPerBlock {
		c.fail(errors.New("a block has 1 to 1,024 sums"))
	}
	for i := range sums {
		c.fixed32(&sums[i])
	}
	return c
}

// Owner says which object and job a key belongs to.
type Owner struct {
	At     Place
	Object moraine.ObjectID // the object there; 0 for none
	Job    moraine.JobID    // the job whose intent changes it; 0 for none
	// Until is the cluster time until which an earlier change of the key may still arrive, because
	// its sender got no reply. It is 0 without such a change.
	Until uint64
}

// Encode returns the stored value.
func (w *Owner) Encode() []byte { return w.fields(encoder(32)).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (w *Owner) Decode(b []byte) error { return w.fields(decoder(b)).End("owner of a key") }

func (w *Owner) fields(c *codec) *codec {
	c.version(ObjectVersion)
	fixed64(c, &w.Object)
	fixed64(c, &w.Job)
	uvarint(c, &w.Until)
	return c
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
func EncodeRemovedIndex(key string) []byte { return EncodeText(removedIndexVersion, key) }

// DecodeRemovedIndex decodes the key of a removed index.
func DecodeRemovedIndex(b []byte) (key string, err error) {
	return decodeText(removedIndexVersion, b, "removed index")
}
