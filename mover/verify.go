package mover

import (
	"context"
	"errors"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport/wire"
)

// The mover records an object only after it compared the object's bytes with ours. It uses the
// CRC32C that the store computed of the whole, if a probe found that reliable, and otherwise
// reads the object back. An ETag proves nothing: the store computed it from what it received,
// and may keep other bytes.

// verify compares the object in the bucket with the CRC32C of the sent bytes. Corrupt: they
// differ.
func (w *work) verify(ctx context.Context, info object.Info, want uint32) (wire.Verified, error) {
	t, err := w.deps.Bucket.Traits(ctx)
	switch {
	case err != nil:
		return 0, err
	case info.HasCRC && info.CRC != want:
		return 0, w.fault(moraine.Corrupt, "the bucket has bytes of CRC32C %08x at %s, %08x were sent", info.CRC, info.Key, want)
	case info.HasCRC && t.WholeCRC:
		return wire.Verified_VERIFIED_STORE_CRC, nil
	}
	_, err = w.readBack(ctx, info.Ref, info.Size, want)
	return wire.Verified_VERIFIED_READ_BACK, err
}

// readBack reads an object and computes the checksums of its pieces. It fails with Corrupt if
// the CRC32C of the whole is not want.
func (w *work) readBack(ctx context.Context, r object.Ref, size int64, want uint32) (sums []uint32, err error) {
	buf := make([]byte, min(size, pieceBytes))
	whole := uint32(0)
	for off := int64(0); off < size; off += pieceBytes {
		piece := buf[:min(pieceBytes, size-off)]
		get := func() error {
			if err := w.pace(ctx, int64(len(piece))); err != nil {
				return err
			}
			return w.deps.Bucket.Get(ctx, r, off, piece)
		}
		if err := w.again(ctx, tries, get); err != nil {
			return nil, err
		}
		sum := crc.Sum(piece)
		whole = crc.Combine(whole, sum, int64(len(piece)))
		sums = append(sums, sum)
	}
	w.deps.Metrics.BytesReadBack.Add(float64(size))
	if whole != want {
		return nil, w.fault(moraine.Corrupt, "the object at %s has CRC32C %08x, want %08x: the store keeps other bytes than it was sent; the flush is tried again", r.Key, whole, want)
	}
	return sums, nil
}

// mayWrite checks the key before an upload. It fails with Exists if an object is there that
// this cluster did not write, unless the policy allows replacing it. It returns the condition
// for the completion.
func (f *flushing) mayWrite(ctx context.Context) (object.Condition, error) {
	info, err := f.deps.Bucket.Head(ctx, object.Ref{Key: f.key})
	if errors.Is(err, moraine.NotFound) {
		return object.Condition{Free: true}, nil
	}
	recorded := f.task.GetObject()
	if errors.Is(err, moraine.Corrupt) {
		// The store cannot tell whose object it is. If the record says that the key is ours, an
		// upload that replaces it repairs it. No file has bytes only in that object; otherwise it
		// would have been moved first.
		if recorded != nil && !recorded.GetKept() && recorded.GetKey() == f.key || f.task.GetOverwrite() {
			return object.Condition{}, nil
		}
		return object.Condition{}, f.fault(moraine.Exists, "an object that is damaged is at s3://%s/%s, and this cluster has no record of it, so that it is not overwritten: delete it, or let flushes of that directory replace such objects by `moraine policy set --foreign overwrite` (%w)",
			f.deps.Bucket.Name(), f.key, err)
	}
	if err != nil {
		return object.Condition{}, err
	}
	ours := recorded != nil && (recorded.GetEtag() == "" || recorded.GetEtag() == info.ETag) ||
		strings.HasPrefix(info.Meta[uploadTag], f.mark()+"-")
	if !(ours && f.isClusters(info)) && !f.task.GetOverwrite() {
		return object.Condition{}, f.foreign(info)
	}
	return object.Condition{ETag: info.ETag}, nil
}

// condition returns the condition for the next completion. If the bucket does not evaluate it,
// the mover checks the key again instead.
func (f *flushing) condition(ctx context.Context) (object.Condition, error) {
	if f.expect.Free && f.traits.IfNoneMatch || f.expect.ETag != "" && f.traits.IfMatch {
		return f.expect, nil
	}
	_, err := f.mayWrite(ctx)
	return object.Condition{}, err
}

// foreign is the error of a key with an object that this cluster did not write.
func (f *flushing) foreign(info object.Info) error {
	return f.fault(moraine.Exists, "an object that this cluster did not write is at s3://%s/%s (%d bytes, ETag %s), and is not overwritten: move it away, or let flushes of that directory replace such objects by `moraine policy set --foreign overwrite`",
		f.deps.Bucket.Name(), f.key, info.Size, info.ETag)
}
