package record

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// ObjectIntent announces that a job will change one key of a bucket. It is in the state before the
// request goes to the store, so that the successor of a failed mover knows what may have happened.
// A job has at most one.
//
// The successor finds an unfinished upload by its number, or among all uploads of its key, and
// aborts it. HEAD shows whether an upload completed. A copy or delete can neither be aborted nor be
// distinguished from one that will still arrive. If its end was not seen, its keys stay unsettled
// until it cannot arrive any more.
type ObjectIntent struct {
	Job        moraine.JobID // in the key
	Kind       wire.IntentKind
	At         Place
	Generation moraine.Generation
	UploadID   string
	Epoch      uint64 // of the job lease under which it was made
	Completing bool
	Etag       string
	Size       uint64
	Crc        uint32
	Source     string           // COPY: the source key
	Object     moraine.ObjectID // UPLOAD: the number of the new object; otherwise the object that has the bytes
}

// Encode returns the stored value.
func (in *ObjectIntent) Encode() []byte {
	return in.fields(encoder(96 + in.At.Len() + len(in.Source))).B
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (in *ObjectIntent) Decode(b []byte) error { return in.fields(decoder(b)).End("intent for a key") }

func (in *ObjectIntent) fields(c *codec) *codec {
	c.version(ObjectVersion)
	oneByte(c, &in.Kind)
	in.At.fields(c)
	fixed64(c, &in.Generation)
	c.string(&in.UploadID)
	uvarint(c, &in.Epoch)
	c.bool(&in.Completing)
	c.string(&in.Etag)
	uvarint(c, &in.Size)
	c.fixed32(&in.Crc)
	c.string(&in.Source)
	fixed64(c, &in.Object)
	return c
}

// ToWire returns the wire form.
func (in *ObjectIntent) ToWire() *wire.ObjectIntent {
	return &wire.ObjectIntent{
		Kind: in.Kind, Bucket: in.At.Bucket, Key: in.At.Key, Generation: uint64(in.Generation), UploadId: in.UploadID,
		LeaseEpoch: in.Epoch, Completing: in.Completing, Etag: in.Etag, Size: in.Size, Crc: in.Crc, SourceKey: in.Source, Object: uint64(in.Object),
	}
}

// Places are the keys that the intent reserves.
func (in *ObjectIntent) Places() []Place {
	if in.Kind == wire.IntentKind_INTENT_KIND_COPY {
		return []Place{in.At, {in.At.Bucket, in.Source}}
	}
	return []Place{in.At}
}

// MustStay reports whether a flush of an inode must not overwrite the object, because an extent
// reads from it or because it is another file's newest object.
func (o *Object) MustStay(flushed moraine.InodeID) bool {
	return o.Tables() > 0 || (o.Newest && o.Inode != flushed)
}
