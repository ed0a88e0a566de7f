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
	b := append([]byte{ObjectVersion}, byte(in.Kind))
	b = PutString(b, in.At.Bucket)
	b = PutString(b, in.At.Key)
	b = PutFixed64(b, uint64(in.Generation))
	b = PutString(b, in.UploadID)
	b = PutUvarint(b, in.Epoch)
	b = putBool(b, in.Completing)
	b = PutString(b, in.Etag)
	b = PutUvarint(b, in.Size)
	b = PutFixed32(b, in.Crc)
	b = PutString(b, in.Source)
	return PutFixed64(b, uint64(in.Object))
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (in *ObjectIntent) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(ObjectVersion)
	in.Kind = wire.IntentKind(d.Byte())
	in.At = Place{d.string(), d.string()}
	in.Generation = moraine.Generation(d.Fixed64())
	in.UploadID = d.string()
	in.Epoch = d.Uvarint()
	in.Completing = d.bool()
	in.Etag = d.string()
	in.Size = d.Uvarint()
	in.Crc = d.fixed32()
	in.Source = d.string()
	in.Object = moraine.ObjectID(d.Fixed64())
	return d.End("intent for a key")
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
