package restores_test

import "github.com/morainefs/moraine/transport/wire"

// bucketHas reports whether the bucket has an object at its key, as it was recorded.
func (w *world) bucketHas(objects []*wire.Object, id uint64) bool {
	for _, o := range objects {
		if o.Id == id {
			rec, err := w.bucket.Store().Head(o.Key)
			return err == nil && rec.ETag == o.Etag && rec.Size == int64(o.Size)
		}
	}
	return false
}
