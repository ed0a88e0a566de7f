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

// The server reports an object that is not in the bucket as recorded. It detects it
// when it reads a piece, and in the comparisons that the metadata service requests
// with heartbeats.

const (
	// objectChecks is how many objects are compared at a time. maxObjectChecks is
	// how many wait: the metadata service sends no more.
	objectChecks    = 8
	maxObjectChecks = 128
	// objectCheckTimeout limits one comparison.
	objectCheckTimeout = 10 * time.Second
	// maxObjectsReported is the most objects of one report. reportObjectsEvery is
	// how long a report waits for more, and maxObjectReports is how many may wait
	// to be reported.
	maxObjectsReported = 64
	reportObjectsEvery = 50 * time.Millisecond
	maxObjectReports   = 512
	// reportObjectAgain is after how long a read reports the same object again.
	reportObjectAgain = 5 * time.Second
)

// checkedBucket is a Bucket that can compare objects with their records, as
// *object.Bucket can.
type checkedBucket interface {
	Head(ctx context.Context, r object.Ref) (object.Info, error)
}

// objectReports are the objects that wait for a comparison or a report.
type objectReports struct {
	bucket string // the bucket's name
	todo   chan *wire.ObjectToCheck
	found  chan *wire.ObjectCheck

	mu       sync.Mutex           // guards reported
	reported map[uint64]time.Time // when a read last reported an object
}

func newObjectReports(url string) *objectReports {
	name, _, _ := strings.Cut(strings.TrimPrefix(url, "s3://"), "/")
	return &objectReports{bucket: name, todo: make(chan *wire.ObjectToCheck, maxObjectChecks), found: make(chan *wire.ObjectCheck, maxObjectReports),
		reported: make(map[uint64]time.Time)}
}

// take accepts the objects that the metadata service wants compared.
func (r *objectReports) take(list []*wire.ObjectToCheck) {
	for _, w := range list {
		select {
		case r.todo <- w:
		default: // without a report, the metadata service requests it again
		}
	}
}

// met reports an object whose piece a read could not get, although the read has
// read its record again since. It never waits.
func (r *objectReports) met(o *wire.Object, offset uint64, err error, now time.Time) {
	state := stateOf(err)
	if o.GetBucket() != r.bucket || state == wire.ObjectState_OBJECT_STATE_UNKNOWN {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.reported[o.Id]; ok && now.Sub(at) < reportObjectAgain {
		return
	}
	if len(r.reported) >= maxObjectReports {
		clear(r.reported)
	}
	r.reported[o.Id] = now
	select {
	case r.found <- &wire.ObjectCheck{Object: o, State: state, Offset: offset, Error: wire.Text(err.Error(), maxErrorText)}:
	default: // the next read detects it again
	}
}

// stateOf is the state of an object by the error of a read or of a HEAD.
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

// compare compares an object with its record by a HEAD. If the metadata service
// requests it, compare also reads and verifies one piece.
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
		return fail(fmt.Errorf("host cannot compare objects of bucket %q: it does not use that bucket", o.GetBucket()), 0)
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

// readAgain reads a piece from the bucket by a record that was read again, and
// verifies it.
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

// reportObjects sends one report of the objects found within a short time.
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
		p.deps.Log.Warn("object report failed", "objects", len(op.Checks), "err", err)
	}
}
