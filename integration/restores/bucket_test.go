package restores_test

import (
	"github.com/morainefs/moraine/internal/objectkey"
	"github.com/morainefs/moraine/transport/wire"
)

// bucketHas reports whether the bucket has an object as recorded: at its key, or at
// the kept key, where it may have moved after the record was made.
func (w *world) bucketHas(objects []*wire.Object, id uint64) bool {
	cluster := w.ID()
	for _, o := range objects {
		if o.Id != id {
			continue
		}
		if rec, err := w.bucket.Store().Head(o.Key); err == nil && rec.ETag == o.Etag && rec.Size == int64(o.Size) {
			return true
		}
		rec, err := w.bucket.Store().Head(objectkey.Kept("", cluster[:], id))
		return err == nil && rec.Size == int64(o.Size) && rec.CRC == o.Crc
	}
	return false
}

// keys are those of all objects in the bucket.
func (w *world) keys() (out []string) {
	for _, r := range w.bucket.Store().List("") {
		out = append(out, r.Key)
	}
	return out
}
