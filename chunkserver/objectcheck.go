package chunkserver

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport/wire"
)

// An object that is not in the bucket as it was recorded is reported to the service: by
// whoever meets it while a piece is read, and by the comparisons that the service asks for
// with its heartbeats.

const (
	// objectChecks is how many objects are compared at a time, and maxObjectChecks how many
	// wait: the service gives no more.
	objectChecks    = 8
	maxObjectChecks = 128
	// objectCheckTimeout bounds one comparison.
	objectCheckTimeout = 10 * time.Second
	// maxObjectsReported is how many objects one report holds, reportObjectsEvery how long
	// more are waited for, and maxObjectReports how many wait to be reported.
	maxObjectsReported = 64
	reportObjectsEvery = 50 * time.Millisecond
	maxObjectReports   = 512
	// reportObjectAgain is after how long an object that a read meets is reported again.
	reportObjectAgain = 5 * time.Second
)

// checkedBucket is a Bucket whose objects can be compared with their records, as those of an
// *object.Bucket.
type checkedBucket interface {
	Head(ctx context.Context, r object.Ref) (object.Info, error)
}

// objectReports are the objects that wait to be compared, or reported.
type objectReports struct {
	bucket string // its name
	todo   chan *wire.ObjectToCheck
	found  chan *wire.ObjectCheck

	mu   sync.Mutex           // guards told
	told map[uint64]time.Time // when a read reported an object
}

func newObjectReports(url string) *objectReports {
	name, _, _ := strings.Cut(strings.TrimPrefix(url, "s3://"), "/")
	return &objectReports{bucket: name, todo: make(chan *wire.ObjectToCheck, maxObjectChecks), found: make(chan *wire.ObjectCheck, maxObjectReports),
		told: make(map[uint64]time.Time)}
}

// take takes over the objects that the service wants compared.
func (r *objectReports) take(list []*wire.ObjectToCheck) {
	for _, w := range list {
		select {
		case r.todo <- w:
		default: // the service hears nothing of it, and asks again
		}
	}
}

// met reports an object of which a read could not get a piece, whose record has been read
// again since. It never waits.
func (r *objectReports) met(o *wire.Object, offset uint64, err error, now time.Time) {
	state := stateOf(err)
	if o.GetBucket() != r.bucket || state == wire.ObjectState_OBJECT_STATE_UNKNOWN {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.told[o.Id]; ok && now.Sub(at) < reportObjectAgain {
		return
	}
	if len(r.told) >= maxObjectReports {
		clear(r.told)
	}
	r.told[o.Id] = now
	select {
	case r.found <- &wire.ObjectCheck{Object: o, State: state, Offset: offset, Error: wire.Text(err.Error(), maxErrorText)}:
	default: // the next read meets it
	}
}

// stateOf is what an error of a read, or of a HEAD, says of an object.
func stateOf(err error) wire.ObjectState {
	switch moraine.KindOf(err) {
	case moraine.NotFound:
		return wire.ObjectState_OBJECT_STATE_MISSING
	case moraine.Conflict:
		return wire.ObjectState_OBJECT_STATE_DIFFERS
	case moraine.Corrupt:
		return wire.ObjectState_OBJECT_STATE_CORRUPT
	}
	return wire.ObjectState_OBJECT_STATE_UNKNOWN
}

// checkObjects compares objects and reports them, until ctx ends.
func (p *pieces) checkObjects(ctx context.Context) {
	var g errgroup.Group
	for range objectChecks {
		g.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case w := <-p.reports.todo:
					select {
					case p.reports.found <- p.compare(ctx, w):
					case <-ctx.Done():
						return nil
					}
				}
			}
		})
	}
	for ctx.Err() == nil {
		p.reportObjects(ctx)
	}
	_ = g.Wait()
}

// compare compares an object with its record: by a HEAD, and where the service asks for it
// by the bytes of one piece.
func (p *pieces) compare(ctx context.Context, w *wire.ObjectToCheck) *wire.ObjectCheck {
	ctx, cancel := context.WithTimeout(ctx, objectCheckTimeout)
	defer cancel()
	o := w.GetObject()
	out := &wire.ObjectCheck{Object: o, State: wire.ObjectState_OBJECT_STATE_GOOD}
	fail := func(err error, offset uint64) *wire.ObjectCheck {
		out.State, out.Offset, out.Error = stateOf(err), offset, wire.Text(err.Error(), maxErrorText)
		return out
	}
	b, ok := p.deps.Bucket.(checkedBucket)
	if !ok || o.GetBucket() != p.reports.bucket {
		return fail(fmt.Errorf("this host cannot compare objects of bucket %q", o.GetBucket()), 0)
	}
	info, err := b.Head(ctx, object.Ref{Key: o.Key, Version: o.Version, ETag: o.Etag})
	if err == nil {
		err = info.Is(o.GetSize(), o.GetCrc())
	}
	if kept := p.keptKey(o.GetId()); err != nil && kept != "" && !o.GetKept() {
		// Restored metadata may be older than the object's move to its kept key.
		if info, keptErr := b.Head(ctx, object.Ref{Key: kept}); keptErr == nil && info.Is(o.GetSize(), o.GetCrc()) == nil {
			err = nil
		}
	}
	if err != nil {
		return fail(err, 0)
	}
	if w.Read && o.GetPiece() > 0 {
		if err := p.readAgain(ctx, pieceKey{o.Id, w.Offset / o.Piece}); err != nil {
			return fail(err, w.Offset)
		}
		out.Read, out.Offset = true, w.Offset
	}
	return out
}

// readAgain reads a piece from the bucket by a record that was read again, and verifies it.
func (p *pieces) readAgain(ctx context.Context, key pieceKey) error {
	p.records.forget(key.object)
	rec, err := p.recordOf(ctx, key)
	if err != nil {
		return err
	}
	buf, err := p.memory(ctx, int(min(rec.object.Piece, rec.object.Size-key.number*rec.object.Piece)))
	if err != nil {
		return err
	}
	defer buf.Release()
	_, err = p.readEither(ctx, rec, key, buf.Bytes())
	return err
}

// reportObjects sends one report, of what is found within a moment.
func (p *pieces) reportObjects(ctx context.Context) {
	op := &wire.ReportObjects{}
	select {
	case <-ctx.Done():
		return
	case w := <-p.reports.found:
		op.Checks = append(op.Checks, w)
	}
	for end := p.deps.Clock.After(reportObjectsEvery); len(op.Checks) < maxObjectsReported; {
		select {
		case <-ctx.Done():
			return
		case w := <-p.reports.found:
			op.Checks = append(op.Checks, w)
			continue
		case <-end:
		}
		break
	}
	if _, err := p.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReportObjects{ReportObjects: op}}); err != nil && ctx.Err() == nil {
		p.deps.Log.Warn("could not report objects of the bucket; they are reported when they are met again", "objects", len(op.Checks), "err", err)
	}
}
