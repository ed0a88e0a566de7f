package fleet

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/transport/wire"
)

// Whether buckets answer the hosts that serve them, as the hosts report with their heartbeats.

const (
	// bucketWatchers is the number of hosts that check an idle bucket every few seconds; the others
	// check it less often.
	bucketWatchers = 3
	// bucketStale is the time without an answer to any host after which a bucket is not known to
	// work. A watcher checks every 5 s and waits for 5 s.
	bucketStale = 30 * time.Second
)

// bucketHealths has the hosts' latest reports.
type bucketHealths struct {
	mu     sync.Mutex // guards the following fields
	byHost map[string]bucketWord
}

type bucketWord struct {
	said *wire.BucketHealth
	at   time.Time
}

func newBucketHealths() *bucketHealths { return &bucketHealths{byHost: make(map[string]bucketWord)} }

// note records the report of a registered host.
func (b *bucketHealths) note(host string, said *wire.BucketHealth, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if said == nil {
		delete(b.byHost, host)
		return
	}
	said.Error = wire.Text(said.Error, MaxProbeError)
	b.byHost[host] = bucketWord{said, now}
}

// watches reports whether a host is one of those that check its bucket every
// few seconds. They are the first of the hosts that are up and serve it.
func (v *View) watches(host string) bool {
	h := v.Hosts[host]
	if h == nil || h.Bucket == "" {
		return false
	}
	before := 0
	for _, o := range v.Wire.Hosts { // in order of their IDs
		if o.Id == host {
			return true
		}
		if o.Alive && o.Bucket == h.Bucket {
			if before++; before == bucketWatchers {
				return false
			}
		}
	}
	return false
}

// BucketStatus returns the status of each bucket that a host serves or that has objects in the
// state. A bucket without a host that is up does not answer anybody.
func (f *Fleet) BucketStatus(r kvtx.Reader) ([]*wire.BucketStatus, error) {
	out := f.bucketHealths.status(f.Topology.View(), f.Clock.Now())
	used, err := tier.ObjectBuckets(f.Machine.View(r), maxBuckets)
	for _, name := range used {
		if !slices.ContainsFunc(out, func(s *wire.BucketStatus) bool { return bucketName(s.Bucket) == name }) {
			out = append(out, &wire.BucketStatus{Bucket: "s3://" + name})
		}
	}
	slices.SortFunc(out, func(a, b *wire.BucketStatus) int { return strings.Compare(a.Bucket, b.Bucket) })
	return out, err
}

// status returns the status of each bucket that a host that is up serves, in order of names.
func (b *bucketHealths) status(v *View, now time.Time) (out []*wire.BucketStatus) {
	b.mu.Lock()
	defer b.mu.Unlock()
	byName := map[string]*wire.BucketStatus{}
	for _, h := range v.Wire.Hosts {
		if h.Bucket == "" || !h.Alive || retired(h) {
			continue
		}
		s := byName[h.Bucket]
		if s == nil {
			s = &wire.BucketStatus{Bucket: h.Bucket}
			byName[h.Bucket] = s
			out = append(out, s)
		}
		s.Hosts++
		w, ok := b.byHost[h.Id]
		if !ok || !w.said.Tried {
			continue
		}
		since := w.said.SinceMillis + uint64(now.Sub(w.at).Milliseconds())
		switch {
		case w.said.Error != "":
			s.Failed++
			if since >= s.FailingMillis {
				s.FailingMillis, s.Error, s.Host = since, w.said.Error, h.Id
			}
		default:
			s.Answered++
			if since = max(since, 1); s.AnsweredMillis == 0 || since < s.AnsweredMillis {
				s.AnsweredMillis = since
			}
		}
	}
	for _, s := range out {
		if s.AnsweredMillis > uint64(bucketStale.Milliseconds()) {
			s.Answered = 0 // too old to say that it works
		}
	}
	slices.SortFunc(out, func(a, b *wire.BucketStatus) int { return strings.Compare(a.Bucket, b.Bucket) })
	return out
}

// forget drops the reports of hosts that are no longer registered.
func (b *bucketHealths) forget(v *View) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range b.byHost {
		if v.Hosts[id] == nil {
			delete(b.byHost, id)
		}
	}
}
