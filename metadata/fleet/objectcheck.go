package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// The leader makes hosts compare the objects of their bucket with the records. It rechecks bad ones
// every few seconds, so that they soon count as good after they are back. It checks all objects
// from time to time at a low rate, and at the full rate for an fsck. The progress is in this
// leader's memory; the next leader starts again.

const (
	// objectCheckEvery is the pause between two checks of all objects. objectCheckAgain is the
	// pause after a check that could not compare all, and objectCheckFirst the one before a
	// leader's first.
	objectCheckEvery = 24 * time.Hour
	objectCheckAgain = time.Hour
	objectCheckFirst = time.Minute
	// objectRate is the number of objects per second that a periodic check compares in one bucket,
	// and objectFullRate that of a check for an fsck.
	objectRate     = 8
	objectFullRate = 256
	// objectsPerHost is the number of objects that a host compares at a time.
	objectsPerHost = 64
	// objectsAgain is how many of these objects may be bad ones, which hosts compare again.
	// objectAgain is the pause between two rounds through the bad ones.
	objectsAgain = 16
	objectAgain  = 5 * time.Second
	// objectAnswer is the time without an answer after which an object counts as not compared.
	// bucketPatience is the time without a host that could compare a bucket after which the bucket
	// does.
	objectAnswer   = 2 * time.Minute
	bucketPatience = 30 * time.Second
	// maxObjectsAsked bounds the objects that all hosts compare at a time.
	maxObjectsAsked = 1024
	// objectLook bounds the records that one heartbeat inspects, and maxBuckets the buckets.
	objectLook = 1024
	maxBuckets = 256
	// maxBadCounted bounds the count of bad objects.
	maxBadCounted = 10_000
)

// ObjectChecks is the leader's knowledge of object checks.
type ObjectChecks struct {
	*lead.Term
	topology *topology

	mu      sync.Mutex // guards the following fields
	check   wire.CheckObjectsReply
	full    bool      // an fsck waits for the check
	ended   time.Time // end of the last check
	settled time.Time // when the running check was last updated
	buckets map[string]*bucketCheck
	asked   map[uint64]askedObject // by object
	again   map[string]*badRound   // by bucket
}

// bucketCheck is the progress of a check in one bucket.
type bucketCheck struct {
	after string // the last key given to a host
	end   bool
	// given is the number of objects since paced, for the rate. moved is when one was last given or
	// answered.
	given int
	paced time.Time
	moved time.Time
}

// badRound is a round through the bad objects of a bucket.
type badRound struct {
	after moraine.ObjectID
	began time.Time
}

// askedObject is an object that a host is comparing.
type askedObject struct {
	host, bucket string
	at           time.Time
	counts       bool // it belongs to the running check
}

func newObjectChecks(t *lead.Term, topology *topology) *ObjectChecks {
	return &ObjectChecks{Term: t, topology: topology, check: wire.CheckObjectsReply{Done: true}, buckets: map[string]*bucketCheck{}, asked: map[uint64]askedObject{}, again: map[string]*badRound{}}
}

// bucketName returns the bucket in a URL s3://BUCKET/PREFIX.
func bucketName(url string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(url, "s3://"), "/")
	return name
}

// begin starts a check of all objects. The caller holds the mutex.
func (o *ObjectChecks) begin(r kvtx.Reader, m *state.Machine, now time.Time) error {
	names, err := tier.ObjectBuckets(m.View(r), maxBuckets)
	if err != nil {
		return err
	}
	n, err := kvtx.ReadCounters(m.View(r))
	if err != nil {
		return err
	}
	o.buckets = make(map[string]*bucketCheck, len(names))
	for _, name := range names {
		o.buckets[name] = &bucketCheck{paced: now, moved: now}
	}
	for id, a := range o.asked {
		a.counts = false
		o.asked[id] = a
	}
	o.check = wire.CheckObjectsReply{Check: max(o.check.Check+1, uint64(now.UnixNano())), Total: n.Objects, Done: len(names) == 0}
	if o.check.Done {
		o.ended = now
	}
	return nil
}

// due reports whether a periodic check must begin. The caller holds the mutex.
func (o *ObjectChecks) due(began, now time.Time) bool {
	switch {
	case !o.check.Done:
		return false
	case o.ended.IsZero():
		return now.Sub(began) >= objectCheckFirst
	case o.check.Unknown > 0:
		return now.Sub(o.ended) >= objectCheckAgain
	}
	return now.Sub(o.ended) >= objectCheckEvery
}

// give returns the objects that a host must compare now. answers says that the host gets answers
// from its bucket.
func (o *ObjectChecks) give(r kvtx.Reader, m *state.Machine, host, url string, answers bool, began, now time.Time) (out []*wire.ObjectToCheck, err error) {
	bucket := bucketName(url)
	if bucket == "" || !answers {
		return nil, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.due(began, now) {
		o.full = false
		if err := o.begin(r, m, now); err != nil {
			return nil, err
		}
	}
	if now.Sub(o.settled) >= time.Second {
		if err := o.settle(r, m, now); err != nil {
			return nil, err
		}
	}
	room := min(objectsPerHost, maxObjectsAsked-len(o.asked))
	mine := 0
	for _, a := range o.asked {
		if a.host == host {
			mine++
		}
	}
	room = min(room, objectsPerHost-mine)
	if out, err = o.giveBad(r, m, host, bucket, min(room, objectsAgain), now); err != nil {
		return nil, err
	}
	more, err := o.giveNext(r, m, host, bucket, room-len(out), now)
	return append(out, more...), err
}

// giveBad gives out bad objects to be compared again. The caller holds the mutex.
func (o *ObjectChecks) giveBad(r kvtx.Reader, m *state.Machine, host, bucket string, room int, now time.Time) (out []*wire.ObjectToCheck, err error) {
	round := o.again[bucket]
	if round == nil {
		if len(o.again) >= maxBuckets {
			clear(o.again)
		}
		round = &badRound{}
		o.again[bucket] = round
	}
	if room <= 0 || round.after == 0 && now.Sub(round.began) < objectAgain {
		return nil, nil
	}
	if round.after == 0 {
		round.began = now
	}
	bad, next, err := tier.BadObjectsOf(m.View(r), bucket, round.after, room, objectLook)
	if err != nil {
		return nil, err
	}
	round.after = next
	for _, w := range bad {
		if _, asked := o.asked[w.Object.Id]; !asked {
			o.asked[w.Object.Id] = askedObject{host: host, bucket: bucket, at: now}
			out = append(out, w)
		}
	}
	return out, nil
}

// giveNext gives out the next objects of the running check. The caller holds the mutex.
func (o *ObjectChecks) giveNext(r kvtx.Reader, m *state.Machine, host, bucket string, room int, now time.Time) (out []*wire.ObjectToCheck, err error) {
	b := o.buckets[bucket]
	if o.check.Done || b == nil || b.end {
		return nil, nil
	}
	rate := float64(objectRate)
	if o.full {
		rate = objectFullRate
	}
	if past := now.Sub(b.paced); past > time.Second {
		b.given = max(0, b.given-int(past.Seconds()*rate))
		b.paced = now
	}
	if room = min(room, int(rate)-b.given); room <= 0 {
		return nil, nil
	}
	objects, last, more, err := tier.ObjectsOf(m.View(r), bucket, b.after, room, objectLook)
	if err != nil {
		return nil, err
	}
	b.after, b.end, b.moved = last, !more, now
	b.given += len(objects)
	for _, w := range objects {
		// A bad object that a host is comparing already counts in this check from now on.
		a, asked := o.asked[w.Id]
		if !asked {
			a = askedObject{host: host, bucket: bucket, at: now}
			out = append(out, &wire.ObjectToCheck{Object: w})
		}
		a.counts = true
		o.asked[w.Id] = a
	}
	return out, nil
}

// settle drops unanswered objects, and ends the check if nothing of it is left. The caller holds
// the mutex.
func (o *ObjectChecks) settle(r kvtx.Reader, m *state.Machine, now time.Time) error {
	open := 0
	o.settled = now
	for id, a := range o.asked {
		switch {
		case now.Sub(a.at) >= objectAnswer:
			delete(o.asked, id)
			o.count(a, wire.ObjectState_OBJECT_STATE_UNKNOWN, "host "+a.host+" has not answered", now)
		case a.counts:
			open++
		}
	}
	if o.check.Done {
		return nil
	}
	for name, b := range o.buckets {
		if !b.end && now.Sub(b.moved) >= bucketPatience {
			if err := o.giveUp(r, m, name, b); err != nil {
				return err
			}
		}
		if !b.end {
			open++
		}
	}
	if open == 0 {
		o.check.Done, o.ended = true, now
	}
	return nil
}

// giveUp counts the rest of a bucket as not compared, because no host can compare it.
func (o *ObjectChecks) giveUp(r kvtx.Reader, m *state.Machine, name string, b *bucketCheck) error {
	for more := true; more; {
		objects, last, next, err := tier.ObjectsOf(m.View(r), name, b.after, objectLook, objectLook)
		if err != nil {
			return err
		}
		o.check.Unknown += uint64(len(objects))
		b.after, more = last, next
	}
	b.end = true
	o.check.Error = fmt.Sprintf("bucket %s has answered no host that serves it for %v", name, bucketPatience)
	return nil
}

// count counts an answer. The caller holds the mutex.
func (o *ObjectChecks) count(a askedObject, s wire.ObjectState, text string, now time.Time) {
	if b := o.buckets[a.bucket]; b != nil {
		b.moved = now
	}
	if !a.counts {
		return
	}
	switch o.check.Checked++; s {
	case wire.ObjectState_OBJECT_STATE_GOOD:
		o.check.Good++
	case wire.ObjectState_OBJECT_STATE_MISSING, wire.ObjectState_OBJECT_STATE_DIFFERS, wire.ObjectState_OBJECT_STATE_CORRUPT:
		o.check.Bad++
	default:
		o.check.Checked--
		o.check.Unknown++
		o.check.Error = text[:min(len(text), MaxProbeError)]
	}
}

// answered records a host's results.
func (o *ObjectChecks) answered(host string, checks []*wire.ObjectCheck, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range checks {
		id := w.GetObject().GetId()
		if a, ok := o.asked[id]; ok && a.host == host {
			delete(o.asked, id)
			o.count(a, w.State, w.Error, now)
		}
	}
}

// ReportObjects processes what hosts found in their bucket. Only results that change a record go
// through the log.
func (o *ObjectChecks) ReportObjects(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	checks := c.Req.GetReportObjects().GetChecks()
	if len(checks) > record.MaxReportedObjects {
		return nil, &moraine.Error{Kind: moraine.TooLarge, Err: fmt.Errorf("the report has %d objects, %d at most", len(checks), record.MaxReportedObjects)}
	}
	if c.Caller.Role != string(transport.RoleAdmin) {
		h := o.topology.View().Hosts[c.Caller.Node]
		for _, w := range checks {
			if h == nil || h.Bucket == "" || bucketName(h.Bucket) != w.GetObject().GetBucket() {
				return nil, lead.Denied("bucket %q is not one that node %q serves", w.GetObject().GetBucket(), c.Caller.Node)
			}
		}
	}
	if err := o.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	var changes []*wire.ObjectCheck
	err := o.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		changes, err = tier.ObjectsChange(o.Machine.View(r), checks)
		return err
	})
	if err != nil {
		return nil, err
	}
	resp := &wire.MetaResponse{Result: &wire.MetaResponse_Done{Done: &wire.Done{}}}
	if len(changes) > 0 {
		resp, err = o.Propose(ctx, c.Caller, &wire.MetaRequest{Op: &wire.MetaRequest_ReportObjects{ReportObjects: &wire.ReportObjects{Checks: changes}}})
		if err != nil || resp.GetError() != nil {
			return resp, err
		}
		o.logObjects(c.Caller.Node, changes)
	}
	o.answered(c.Caller.Node, checks, o.Clock.Now())
	return resp, nil
}

func (o *ObjectChecks) logObjects(host string, changes []*wire.ObjectCheck) {
	for _, w := range changes {
		if w.State == wire.ObjectState_OBJECT_STATE_GOOD {
			o.Log.Info("an object in its bucket matches its record again", "object", w.Object.Id, "bucket", w.Object.Bucket, "key", w.Object.Key, "host", host)
		} else {
			o.Log.Error("an object in its bucket is missing or differs from its record", "object", w.Object.Id, "bucket", w.Object.Bucket, "key", w.Object.Key,
				"state", w.State, "host", host, "err", w.Error)
		}
	}
}

// CheckObjects starts a check of all objects, or answers its progress.
func (o *ObjectChecks) CheckObjects(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	if err := o.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	now := o.Clock.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	err := o.Store.View(func(r kvtx.Reader, _ uint64) error {
		if c.Req.GetCheckObjects().GetStart() {
			// Restart also a check for another fsck: it may have passed an object before that
			// object was lost.
			o.full = true
			if err := o.begin(r, o.Machine, now); err != nil {
				return err
			}
		}
		return o.settle(r, o.Machine, now)
	})
	if err != nil {
		return nil, err
	}
	reply := &wire.CheckObjectsReply{Check: o.check.Check, Done: o.check.Done, Total: o.check.Total, Checked: o.check.Checked,
		Good: o.check.Good, Bad: o.check.Bad, Unknown: o.check.Unknown, Error: o.check.Error, Full: o.full}
	if reply.Error == "" && reply.Unknown > 0 {
		reply.Error = errNoAnswer.Error()
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_CheckObjects{CheckObjects: reply}}, nil
}

var errNoAnswer = errors.New("no host has answered yet")

// CountBad counts the objects that differ from their records.
func (o *ObjectChecks) CountBad(r kvtx.Reader) (lost, bad uint64, err error) {
	n, err := kvtx.ReadCounters(o.Machine.View(r))
	if err != nil || n.BadObjects == 0 {
		return 0, 0, err
	}
	gone, copies, err := tier.CountBadObjects(o.Machine.View(r), maxBadCounted)
	return uint64(gone), uint64(copies), err
}
