package observe

import (
	"math/bits"
	"time"
)

// Durations are counted in buckets: four for each power of two of microseconds.
const (
	perPower = 4
	powers   = 31 // the last ends at 2^31 us, more than half an hour
	buckets  = perPower * powers
)

// bucketOf returns the bucket of a duration.
func bucketOf(d time.Duration) int {
	us := uint64(max(0, d.Microseconds()))
	if us < perPower {
		return int(us)
	}
	power := bits.Len64(us) - 1 // at least 2
	return min(buckets-1, (power-1)*perPower+int(us>>(power-2))&(perPower-1))
}

// bucketEnd is the duration at which a bucket ends.
func bucketEnd(i int) time.Duration {
	if i < perPower {
		return time.Duration(i+1) * time.Microsecond
	}
	power := i/perPower + 1
	return time.Duration(perPower+i%perPower+1) << (power - 2) * time.Microsecond
}

// Operation is what an Observer has counted of one operation, or the difference of two such counts.
type Operation struct {
	Count  uint64 `json:"count"`
	Errors uint64 `json:"errors"`
	Bytes  uint64 `json:"bytes"`
	Nanos  uint64 `json:"nanos"` // the sum of all durations
	// Buckets counts the durations; trailing zeros are left out.
	Buckets []uint64 `json:"buckets,omitempty"`
}

// Snapshot is what an Observer has counted so far, by operation.
type Snapshot map[string]Operation

// Snapshot returns the counts. Operations without a request are left out.
func (o *Observer) Snapshot() Snapshot {
	s := Snapshot{}
	for i := range o.counts {
		n := &o.counts[i]
		if n.count.Load() == 0 {
			continue
		}
		op := Operation{Count: n.count.Load(), Errors: n.errors.Load(), Bytes: n.bytes.Load(), Nanos: n.nanos.Load()}
		for b := range n.buckets {
			if c := n.buckets[b].Load(); c > 0 {
				for len(op.Buckets) < b {
					op.Buckets = append(op.Buckets, 0)
				}
				op.Buckets = append(op.Buckets, c)
			}
		}
		s[operation(i).String()] = op
	}
	return s
}

// Since returns what was counted after an earlier snapshot.
func (s Snapshot) Since(earlier Snapshot) Snapshot {
	d := Snapshot{}
	for name, now := range s {
		was := earlier[name]
		if now.Count == was.Count {
			continue
		}
		op := Operation{Count: now.Count - was.Count, Errors: now.Errors - was.Errors, Bytes: now.Bytes - was.Bytes, Nanos: now.Nanos - was.Nanos}
		for i, c := range now.Buckets {
			if i < len(was.Buckets) {
				c -= was.Buckets[i]
			}
			op.Buckets = append(op.Buckets, c)
		}
		d[name] = op
	}
	return d
}

// Total returns the sum of all operations.
func (s Snapshot) Total() (t Operation) {
	for _, op := range s {
		t.Count, t.Errors, t.Bytes, t.Nanos = t.Count+op.Count, t.Errors+op.Errors, t.Bytes+op.Bytes, t.Nanos+op.Nanos
		for i, c := range op.Buckets {
			if i == len(t.Buckets) {
				t.Buckets = append(t.Buckets, 0)
			}
			t.Buckets[i] += c
		}
	}
	return t
}

// Quantile returns a duration that so many of the requests (0 to 1) did not exceed. It is the end of
// a bucket, at most a quarter more than the exact one.
func (op Operation) Quantile(q float64) time.Duration {
	var total, sum uint64
	for _, c := range op.Buckets {
		total += c
	}
	for i, c := range op.Buckets {
		if sum += c; c > 0 && float64(sum) >= q*float64(total) {
			return bucketEnd(i)
		}
	}
	return 0
}

// Uptime is how long the Observer counts.
func (o *Observer) Uptime() time.Duration { return time.Since(o.started) }
