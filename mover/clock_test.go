package mover_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/clock"
)

// origin has a monotonic reading, which times in a synctest bubble lack.
var origin = time.Now()

// stepped is a clock whose wall time can be set back, while its monotonic time continues.
type stepped struct {
	clock.System
	began time.Time
	back  atomic.Int64 // seconds
}

func (s *stepped) Now() time.Time {
	t := origin.Add(time.Since(s.began))
	// The seconds of a Time with a monotonic reading are above 30 bits of nanoseconds.
	*(*uint64)(unsafe.Pointer(&t)) -= uint64(s.back.Load()) << 30
	return t
}

func (s *stepped) Since(t time.Time) time.Duration { return s.Now().Sub(t) }

// TestAClockThatIsSetBackLengthensNoLease: a mover sleeps until another has its lease, and
// wakes to a wall clock that was set back. It must send nothing to the store: it would abort
// the upload of the new holder.
func TestAClockThatIsSetBackLengthensNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, small)
		c := &stepped{began: time.Now()}
		l.clock = c
		asleep, wake, later := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var begun, sent atomic.Int64
		l.onMeta(func(holder, op string) (func(error) error, error) {
			switch {
			case holder != "n1":
			case op == "BeginObject" && begun.Add(1) == 2:
				close(asleep)
				<-wake
			case op == "RenewJob":
				<-later // the answer that the lease is lost comes last
			}
			return nil, nil
		})
		l.queue(flushKind)
		stop := l.start("n1")
		<-asleep
		stop2 := l.start("n2")
		time.Sleep(time.Minute)
		l.waitIdle(t)
		l.requireFlushed(t)
		stop2()
		l.bucket.SetHook(func(context.Context, string, string) (func(error) error, error) {
			sent.Add(1)
			return nil, nil
		})
		c.back.Store(3600)
		require.Equal(t, time.Minute, (c.Now().Sub(origin)-time.Since(c.began))+time.Minute, "the monotonic time goes on")
		close(wake)
		synctest.Wait()
		n := sent.Load()
		close(later)
		stop()
		require.Zero(t, n, "requests to the store")
	})
}
