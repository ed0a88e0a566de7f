package record

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// ObjectIntent is a recorded wish of a job to change one key of a bucket. It is
// in the state before the store is asked, so that the successor of a mover that
// went away knows what may have happened. A job has one at most.
//
// What an upload that nobody finished leaves behind is found by its number, or
// among all uploads of its key, and aborted; whether one was completed HEAD
// tells. A copy or a delete can be neither aborted nor told from one that will
// still arrive: where its end was not seen, its keys are unsettled until it
// cannot arrive any more.
type ObjectIntent struct {
	Job        moraine.JobID // in the key
	Kind       wire.IntentKind
	At         Place
	Generation moraine.Generation
	UploadID   string
	Epoch      uint64 // of the lease that it was made under
	Completing bool
	Etag       string
	Size       uint64
	Crc        uint32
	Source     string           // COPY: the key that is copied
	Object     moraine.ObjectID // UPLOAD: the number it will have; else whose bytes
}

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

func (in *ObjectIntent) ToWire() *wire.ObjectIntent {
	return &wire.ObjectIntent{
		Kind: in.Kind, Bucket: in.At.Bucket, Key: in.At.Key, Generation: uint64(in.Generation), UploadId: in.UploadID,
		LeaseEpoch: in.Epoch, Completing: in.Completing, Etag: in.Etag, Size: in.Size, Crc: in.Crc, SourceKey: in.Source, Object: uint64(in.Object),
	}
}

// Places are the keys that the intent claims.
func (in *ObjectIntent) Places() []Place {
	if in.Kind == wire.IntentKind_INTENT_KIND_COPY {
		return []Place{in.At, {in.At.Bucket, in.Source}}
	}
	return []Place{in.At}
}

// MustStay reports whether a flush of an inode must not overwrite the object:
// something reads from it, or it is the newest of another file.
func (o *Object) MustStay(flushed moraine.InodeID) bool {
	return o.Tables() > 0 || (o.Newest && o.Inode != flushed)
}
