package stripeio

import (
	"context"
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// WholeObject is the object that has all of one generation of a file. Safe for concurrent use.
type WholeObject struct {
	e      *Engine
	object *objectRead
}

// ObjectOf returns the object that has all of the file that attr describes. It fails with NotFound if
// there is none. Chunkservers serve it to sessions of the root only: the others get capabilities for
// the objects that a file's extents name.
func (e *Engine) ObjectOf(ctx context.Context, attr *wire.Attr) (*WholeObject, error) {
	ref := moraine.InodeID(attr.GetInode()).String()
	if !attr.GetClean() || attr.GetObject() == 0 {
		return nil, &moraine.Error{Op: "client.OpenObject", Ref: ref, Kind: moraine.NotFound, Err: errors.New("no object has all of the file: flush it")}
	}
	resp, err := e.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetObject{GetObject: &wire.GetObject{Object: attr.GetObject()}}})
	if err != nil {
		return nil, err
	}
	o := resp.GetObject().GetObject()
	switch {
	case o.GetPiece() == 0:
		return nil, retry.BadReply("get object")
	case o.GetInode() != attr.GetInode() || o.GetGeneration() != attr.GetGeneration() || o.GetSize() != attr.GetSize():
		return nil, &moraine.Error{Op: "client.OpenObject", Ref: ref, Kind: moraine.Stale, Err: errors.New("the file has changed since: open it again")}
	}
	return &WholeObject{e, &objectRead{object: o, inode: attr.GetInode(), generation: attr.GetGeneration()}}, nil
}

// Read fills dst, which lies within the object, from off on. When it returns nil the bytes are right.
func (w *WholeObject) Read(ctx context.Context, dst []byte, off int64) error {
	return w.e.readObject(ctx, w.object, off, dst)
}
