package mover

import (
	"context"
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// maxTracker bounds what is read of a tracker file, in bytes: it has one number.
const maxTracker = 64

// readTracker reads Megatron's tracker file. The service adopts the directory that it names.
func (w *work) readTracker(ctx context.Context) error {
	if w.deps.Open == nil {
		return &moraine.Error{Op: "mover", Kind: moraine.Unimplemented, Err: errors.New("nothing opens files")}
	}
	f, err := w.deps.Open(ctx, moraine.InodeID(w.job.GetInode()))
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, min(f.Size(), maxTracker))
	if err := f.ReadRange(ctx, b, 0); err != nil {
		return err
	}
	w.text = wire.Text(string(b), maxTracker)
	return nil
}
