package s3

import (
	"context"
	"errors"
	"log/slog"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// objects puts, copies, reads and deletes objects. It has no lock: of two requests
// for one key, the commit in the metadata service decides.
type objects struct {
	tree    *tree
	log     *slog.Logger
	metrics *Metrics
}

// describe sets the record on a file that was written and is not committed. The
// commit that follows makes the next generation, which the record names. A small
// object is one entry: file, record, content and name.
func (objs *objects) describe(ctx context.Context, f *client.File, r *record) error {
	if r.Checksum != nil {
		generation, err := f.NextGeneration(ctx)
		if err != nil {
			return err
		}
		r.Generation = uint64(generation)
	}
	if r.plain() {
		return nil
	}
	data, err := r.encode()
	if err != nil {
		return err
	}
	return f.SetXattr(ctx, recordXattr, data)
}

// settled returns when the committed bytes are protected, and the record names
// their generation. If devices went out before the commit, the commit took more
// steps than expected, and made another generation. Until the record is rewritten,
// the object has no checksum.
func (objs *objects) settled(ctx context.Context, done client.CommitResult, r *record) error {
	if r.Generation != 0 && r.Generation != uint64(done.Attr.Generation()) {
		r.Generation = uint64(done.Attr.Generation())
		err := objs.tree.writeRecord(ctx, done.Attr.Inode(), r)
		if err != nil && !errors.Is(err, moraine.NotFound) { // it may be replaced meanwhile
			return err
		}
	}
	return objs.protected(ctx, done)
}

// maxRuns limits the part lengths in a record: an upload of parts with more
// different lengths is no longer separated into parts.
const maxRuns = 1000

// settle adds to an object's record what is known about its content only once the
// content has a generation. Until then, or if we stop here, the object has no such
// information.
func (objs *objects) settle(ctx context.Context, attr client.Attr, r *record) {
	if len(r.Parts) > maxRuns {
		r.Parts = nil
	}
	if r.Checksum == nil && len(r.Parts) == 0 {
		return
	}
	r.Generation = uint64(attr.Generation())
	if err := objs.tree.writeRecord(ctx, attr.Inode(), r); err != nil && !errors.Is(err, moraine.NotFound) {
		objs.log.Warn("object record write failed", "inode", attr.Inode().String(), "err", err)
	}
}
