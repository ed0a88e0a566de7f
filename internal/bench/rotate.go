package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// RotateGrace is how long metadata servers of a rotating write keep dead
// chunks. With the usual minute the write would wait for the space of the files
// it replaces.
const RotateGrace = 2 * time.Second

const (
	// stored is the device bytes for a byte of a file, with 4+2.
	stored = 1.5
	// rotateFiles is how many files a writer keeps, in turn, and rotateShare the
	// part of the working set of one of them. With the one being written they use
	// three eighths of it, and files waiting for deletion use the rest.
	rotateFiles = 2
	rotateShare = 8
)

// rotates reports whether a write is longer than its working set.
func (e *Env) rotates() bool { return Rotates(e.Bytes, e.WorkingSet) }

// Rotates reports whether a write of so many bytes overwrites files in turn.
func Rotates(bytes, workingSet int64) bool {
	return workingSet > 0 && float64(bytes)*stored > float64(workingSet)
}

// rotating makes works of OpWrite stay within e.WorkingSet.
func (e *Env) rotating(works []Work) []Work {
	if !e.rotates() {
		return works
	}
	for i := range works {
		works[i].WorkingSet, works[i].Writers = e.WorkingSet, len(works)
	}
	return works
}

// A filledTarget knows how many bytes the devices hold.
type filledTarget interface {
	// Stored returns the bytes on all devices, by the last report of their servers.
	Stored(ctx context.Context) (int64, error)
}

// Stored implements filledTarget.
func (t *clusterTarget) Stored(ctx context.Context) (bytes int64, err error) {
	resp, err := rawclient.Of(t.c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	for _, h := range resp.GetCluster().GetTopology().GetHosts() {
		for _, d := range h.GetDevices() {
			bytes += int64(d.GetUsed())
		}
	}
	return bytes, err
}

// writeFiles writes one file. Within a working set it writes one after the other,
// each in place of an older one as soon as there is space for it.
func writeFiles(ctx context.Context, t Target, w Work, source []byte) error {
	if w.WorkingSet == 0 {
		return t.Write(ctx, w.Path, w.Bytes, source)
	}
	one := int64(float64(w.WorkingSet) / stored / rotateShare / float64(w.Writers))
	for n, left := 0, w.Bytes; left > 0; n++ {
		if err := untilRoom(ctx, t, w.WorkingSet-int64(stored*float64(one)*float64(w.Writers))); err != nil {
			return err
		}
		size := min(one, left)
		if err := t.Write(ctx, fmt.Sprintf("%s-%d", w.Path, n%rotateFiles), size, source); err != nil {
			return err
		}
		left -= size
	}
	return nil
}

// room makes a directory, and waits for the space that its files need beside those
// left by a rotating write.
func (e *Env) room(ctx context.Context, dir string) (err error) {
	t, err := e.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	if err := t.Mkdir(ctx, dir); err != nil || !e.rotates() {
		return err
	}
	return untilRoom(ctx, t, e.WorkingSet/2)
}

// roomPatience limits the wait for the space of replaced files.
const roomPatience = 2 * time.Minute

// untilRoom waits until the devices hold at most so many bytes. It trusts a target
// that does not report them.
func untilRoom(ctx context.Context, t Target, atMost int64) error {
	f, ok := t.(filledTarget)
	if !ok {
		return nil
	}
	for end := time.Now().Add(roomPatience); ; {
		bytes, err := f.Stored(ctx)
		if err != nil || bytes <= atMost {
			return err
		}
		if time.Now().After(end) {
			return errors.New("bench: the space of replaced files was not reclaimed")
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}
