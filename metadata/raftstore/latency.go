package raftstore

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// latencies counts durations in buckets, four to each power of two of microseconds, so that
// quantiles need no list of durations. A quantile is at most a quarter too high. It may be used
// concurrently; the zero value is ready.
type latencies struct {
	buckets [latencyBuckets]atomic.Uint64
}

const latencyBuckets = 4 * 32 // up to an hour

func (l *latencies) observe(d time.Duration) {
	l.buckets[latencyBucket(uint64(max(d.Microseconds(), 0)))].Add(1)
}

func latencyBucket(micros uint64) int {
	if micros < 4 {
		return int(micros)
	}
	power := bits.Len64(micros) - 1
	return min(4*(power-1)+int(micros>>(power-2)&3), latencyBuckets-1)
}

// latencyBound returns the upper end of a bucket, in microseconds.
func latencyBound(bucket int) uint64 {
	if bucket < 4 {
		return uint64(bucket) + 1
	}
	power := bucket/4 + 1
	return (4 + uint64(bucket&3) + 1) << (power - 2)
}

// Latencies are quantiles of all durations since the node was made, as upper bounds of their
// buckets.
type Latencies struct {
	Count         uint64
	P50, P99, Max time.Duration
}

func (l *latencies) quantiles() Latencies {
	var counts [latencyBuckets]uint64
	var out Latencies
	for i := range counts {
		counts[i] = l.buckets[i].Load()
		out.Count += counts[i]
	}
	var seen uint64
	for i, n := range counts {
		if n == 0 {
			continue
		}
		at := time.Duration(latencyBound(i)) * time.Microsecond
		if seen*100 < out.Count*50 {
			out.P50 = at
		}
		if seen*100 < out.Count*99 {
			out.P99 = at
		}
		out.Max = at
		seen += n
	}
	return out
}
