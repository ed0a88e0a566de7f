package mover_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/tiers/object/objecttest"
	"github.com/morainefs/moraine/tiers/tiertest"
	"github.com/morainefs/moraine/transport/wire"
)

func refOf(key string) object.Ref { return object.Ref{Key: key} }

func filled(n int, seed uint64) []byte {
	data := make([]byte, n)
	tiertest.Fill(data, seed)
	return data
}

// small has one part; big has three, of which the last is short.
var small, big = filled(5000, 1), filled(2*16<<20+1234, 2)

// tabled is the content that the fault tables flush; in their long form it has several parts.
func tabled() []byte {
	return testseed.Of(small, big)
}

const flushKind = wire.JobKind_JOB_KIND_FLUSH

// waitIdle waits, by the bubble's clock, until all jobs have ended.
func (l *ledger) waitIdle(t *testing.T) {
	t.Helper()
	eventually(t, 10*time.Minute, "jobs end", l.idle)
}

func TestFlush(t *testing.T) {
	for name, data := range map[string][]byte{"small": small, "big": big, "empty": {}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(t, data)
				l.queue(flushKind)
				defer l.start("n1")()
				l.waitIdle(t)
				l.requireFlushed(t)
				info, err := l.bucket.Head(t.Context(), refOf(l.key()))
				require.NoError(t, err)
				require.Equal(t, map[string]string{"file-owner": "1000", "file-group": "100", "file-permissions": "0640",
					"file-mtime": "1700000000.123456789", "moraine-upload": fmt.Sprintf("%x-%016x-%016x-%016x-%016x", "cluster", 9, 3, ledgerJob, 1)}, info.Meta)
				// The next generation takes over the key.
				l.write(filled(777, 5))
				l.queue(flushKind)
				l.waitIdle(t)
				l.requireFlushed(t)
			})
		})
	}
}

// TestFlushTellsItsProgress flushes in less time than to a renewal: the mover still reports
// each quarter.
func TestFlushTellsItsProgress(t *testing.T) {
	const fourth = 16 << 20
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, filled(4*fourth, 1))
		var parts atomic.Int64
		l.bucket.SetHook(func(_ context.Context, op, _ string) (func(error) error, error) {
			if op == "put_part" {
				time.Sleep(time.Duration(parts.Add(1)) * 100 * time.Millisecond)
			}
			return nil, nil
		})
		l.queue(flushKind)
		defer l.start("n1")()
		l.waitIdle(t)
		l.requireFlushed(t)
		require.EqualValues(t, 4, parts.Load())
		for i, told := range l.told {
			require.EqualValues(t, 4*fourth, told.Total)
			require.EqualValues(t, (i+1)*fourth, told.Done)
		}
		require.GreaterOrEqual(t, len(l.told), 3)
	})
}

// step is one request of a flush, to the service or to the store.
type step struct {
	name string
	nth  int
}

// flushSteps runs a flush and lists its requests, in order.
func flushSteps(t *testing.T, data []byte) (steps []step) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, data)
		seen := map[string]int{}
		l.watch(func(_, name string) (func(error) error, error) {
			if name != "meta LeaseJobs" && name != "meta RenewJob" {
				steps = append(steps, step{name, seen[name]})
				seen[name]++
			}
			return nil, nil
		})
		l.queue(flushKind)
		defer l.start("n1")()
		l.waitIdle(t)
	})
	require.Greater(t, len(steps), 8)
	return steps
}

// watch calls fn with each request of every mover, to the service and to the store.
func (l *ledger) watch(fn func(holder, name string) (func(error) error, error)) {
	var mu sync.Mutex
	l.onMeta(func(holder, op string) (func(error) error, error) {
		mu.Lock()
		defer mu.Unlock()
		return fn(holder, "meta "+op)
	})
	l.bucket.SetHook(func(_ context.Context, op, _ string) (func(error) error, error) {
		mu.Lock()
		defer mu.Unlock()
		return fn("", "store "+op)
	})
}

// at calls fn when the n-th request of a step's kind comes, once.
func (l *ledger) at(s step, fn func() (func(error) error, error)) {
	n := 0
	l.watch(func(_, name string) (func(error) error, error) {
		if name != s.name {
			return nil, nil
		}
		n++
		if n != s.nth+1 {
			return nil, nil
		}
		return fn()
	})
}

// TestFlushFaults is the fault table of a flush. Each request fails once, with and without
// having taken effect. The error is one that allows another try, or one that does not.
func TestFlushFaults(t *testing.T) {
	for _, s := range flushSteps(t, tabled()) {
		for _, c := range []struct {
			name string
			err  error
			lost bool
		}{
			{"unavailable", objecttest.Failure(moraine.Unavailable, false), false},
			{"refused", objecttest.Failure(moraine.PermissionDenied, true), false},
			{"lost", objecttest.Failure(moraine.Unavailable, false), true},
			{"timed out", objecttest.Failure(moraine.Timeout, false), true},
		} {
			t.Run(fmt.Sprintf("%s %d %s", s.name, s.nth, c.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLedger(t, tabled())
					fired := false
					l.at(s, func() (func(error) error, error) {
						fired = true
						if c.lost {
							return func(error) error { return c.err }, nil
						}
						return nil, c.err
					})
					l.queue(flushKind)
					defer l.start("n1")()
					l.waitIdle(t)
					l.requireFlushed(t)
					require.True(t, fired)
				})
			})
		}
	}
}

// TestPartsOnTheirWayAreWaitedFor has the store refuse one part while another is being sent.
// The mover aborts the upload only after that has ended, because some stores accept a whole
// part after the abort, and then have the upload again.
func TestPartsOnTheirWayAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, filled(2*(16<<20), 3))
		var parts, aborts atomic.Int32
		var under atomic.Bool
		l.bucket.SetHook(func(ctx context.Context, op, _ string) (func(error) error, error) {
			switch op {
			case "abort":
				require.False(t, under.Load(), "aborted with a part on its way")
				aborts.Add(1)
			case "put_part":
				switch parts.Add(1) {
				case 1:
					under.Store(true)
					defer under.Store(false)
					select {
					case <-time.After(5 * time.Second):
					case <-ctx.Done():
						t.Error("a part on its way was cut off")
					}
				case 2:
					return nil, objecttest.Failure(moraine.PermissionDenied, true)
				}
			}
			return nil, nil
		})
		l.queue(flushKind)
		defer l.start("n1")()
		l.waitIdle(t)
		l.requireFlushed(t)
		require.NotZero(t, aborts.Load())
	})
}

// TestUploadLeftByAFailedComplete: the store makes the object, fails, and keeps the upload. The
// mover ends the upload before it records the object.
func TestUploadLeftByAFailedComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, small)
		left := false
		l.at(step{"store complete", 0}, func() (func(error) error, error) {
			return func(error) error {
				_, err := l.bucket.NewUpload(t.Context(), l.key(), nil)
				require.NoError(t, err)
				left = true
				return objecttest.Failure(moraine.Unavailable, false)
			}, nil
		})
		l.queue(flushKind)
		defer l.start("n1")()
		l.waitIdle(t)
		l.requireFlushed(t)
		require.True(t, left)
	})
}

// TestFlushTakenOver kills the mover before and after each request; another takes the job over
// when the lease has expired.
func TestFlushTakenOver(t *testing.T) {
	for _, s := range flushSteps(t, tabled()) {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %d after=%v", s.name, s.nth, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLedger(t, tabled())
					dead := false
					died := make(chan struct{})
					n := 0
					gone := objecttest.Failure(moraine.Unavailable, false)
					l.watch(func(_, name string) (func(error) error, error) {
						if dead {
							return nil, gone
						}
						if name != s.name {
							return nil, nil
						}
						if n++; n != s.nth+1 {
							return nil, nil
						}
						dead = true
						close(died)
						if after {
							return func(error) error { return gone }, nil
						}
						return nil, gone
					})
					l.queue(flushKind)
					stop := l.start("n1")
					<-died
					stop()
					l.watch(func(string, string) (func(error) error, error) { return nil, nil })
					defer l.start("n2")()
					l.waitIdle(t)
					l.requireFlushed(t)
				})
			})
		}
	}
}

// TestFormerHolderWakes stops the mover at each request for a minute, in which another finishes
// the job and the file is written and flushed again. What the first one then does changes
// nothing.
func TestFormerHolderWakes(t *testing.T) {
	for _, s := range flushSteps(t, small) {
		if s.name == "store new_upload" {
			continue // a late one is an upload that the next flush of the key ends: see TestLateUploadIsEnded
		}
		t.Run(fmt.Sprintf("%s %d", s.name, s.nth), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(t, small)
				asleep, wake := make(chan struct{}), make(chan struct{})
				var mu sync.Mutex
				n := 0
				stall := func(name string) {
					mu.Lock()
					hit := name == s.name
					if hit {
						n++
						hit = n == s.nth+1
					}
					mu.Unlock()
					if hit {
						close(asleep)
						<-wake
					}
				}
				// While it sleeps, its other requests are blocked too: its lease expires.
				l.onMeta(func(holder, op string) (func(error) error, error) {
					stall("meta " + op)
					select {
					case <-asleep:
						if holder == "n1" {
							<-wake
						}
					default:
					}
					return nil, nil
				})
				l.bucket.SetHook(func(_ context.Context, op, _ string) (func(error) error, error) {
					stall("store " + op)
					return nil, nil
				})
				l.queue(flushKind)
				stop := l.start("n1")
				<-asleep
				stop2 := l.start("n2")
				time.Sleep(time.Minute)
				l.waitIdle(t)
				l.write(filled(9999, 8))
				l.queue(flushKind)
				l.waitIdle(t)
				l.requireFlushed(t)
				stop2()
				close(wake)
				time.Sleep(time.Minute)
				stop()
				l.requireFlushed(t)
			})
		})
	}
}

// TestLateUploadIsEnded: no intent names an upload that was begun after its lease ended. The
// next flush of the key ends it.
func TestLateUploadIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, small)
		_, err := l.bucket.NewUpload(t.Context(), l.key(), nil)
		require.NoError(t, err)
		l.intent = &wire.ObjectIntent{Kind: wire.IntentKind_INTENT_KIND_UPLOAD, Key: l.key(), Generation: 3, LeaseEpoch: 0}
		l.queue(flushKind)
		defer l.start("n1")()
		l.waitIdle(t)
		l.requireFlushed(t)
	})
}

// TestWritesWhileFlushing writes the file at each request of its flush: in the end the newest
// generation is in the bucket.
func TestWritesWhileFlushing(t *testing.T) {
	for _, s := range flushSteps(t, small) {
		t.Run(fmt.Sprintf("%s %d", s.name, s.nth), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(t, small)
				l.at(s, func() (func(error) error, error) {
					l.write(filled(4321, 6))
					return nil, nil
				})
				l.queue(flushKind)
				defer l.start("n1")()
				l.waitIdle(t)
				if !l.file().Clean {
					l.queue(flushKind) // written after the flush had ended
					l.waitIdle(t)
				}
				l.requireFlushed(t)
			})
		})
	}
}

// TestKeepFirst: the mover copies an object that something refers to before it uses the key
// again. It does so even if each request fails or its answer is lost.
func TestKeepFirst(t *testing.T) {
	for _, op := range []string{"", "store copy", "meta MoveObject", "meta BeginObject", "meta EndObject"} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s lost=%v", op, lost), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLedger(t, small)
					l.queue(flushKind)
					defer l.start("n1")()
					l.waitIdle(t)
					l.write(filled(123, 4))
					l.mu.Lock()
					l.keep = true
					l.mu.Unlock()
					fail := objecttest.Failure(moraine.Unavailable, false)
					l.at(step{op, 0}, func() (func(error) error, error) {
						if lost {
							return func(error) error { return fail }, nil
						}
						return nil, fail
					})
					l.queue(flushKind)
					l.waitIdle(t)
					kept := "tier/.moraine/kept/636c7573746572/0000000000000064"
					l.requireFlushed(t, kept)
					require.Equal(t, small, l.bucket.Bytes(kept))
					require.Equal(t, kept, l.objects[100].Key)
				})
			})
		}
	}
}

// TestKeepOfWhatWasKeptBefore: restored metadata has an object at the key that was later moved
// to its kept key. A flush records the move again before it uses the key, whether something
// refers to the object or not.
func TestKeepOfWhatWasKeptBefore(t *testing.T) {
	for _, refers := range []bool{false, true} {
		for _, newer := range []bool{false, true} {
			t.Run(fmt.Sprintf("refers=%v newer=%v", refers, newer), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLedger(t, small)
					l.queue(flushKind)
					defer l.start("n1")()
					l.waitIdle(t)
					kept := "tier/.moraine/kept/636c7573746572/0000000000000064"
					_, err := l.bucket.Copy(t.Context(), refOf(l.key()), int64(len(small)), kept)
					require.NoError(t, err)
					require.NoError(t, l.bucket.Delete(t.Context(), refOf(l.key())))
					if newer {
						l.bucket.Put(l.key(), filled(77, 9))
					}
					l.write(filled(123, 4))
					l.mu.Lock()
					l.keep, l.overwrite = refers, true
					l.mu.Unlock()
					l.queue(flushKind)
					l.waitIdle(t)
					l.requireFlushed(t, kept)
					require.Equal(t, small, l.bucket.Bytes(kept))
					require.Equal(t, kept, l.objects[100].Key)
				})
			})
		}
	}
}

// TestCanceledFlushLeavesNothing: a canceled flush with an open upload is leased once more, to
// end it.
func TestCanceledFlushLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, small)
		id, err := l.bucket.NewUpload(t.Context(), l.key(), nil)
		require.NoError(t, err)
		l.kind, l.cleanup = flushKind, true
		l.intent = &wire.ObjectIntent{Kind: wire.IntentKind_INTENT_KIND_UPLOAD, Key: l.key(), UploadId: id}
		defer l.start("n1")()
		l.waitIdle(t)
		require.Zero(t, l.bucket.Open())
		require.Empty(t, l.bucket.Keys())
		require.Nil(t, l.intent)
	})
}

// TestForeignObjectIsNotTakenForOurs: the mover does not record an object that another program
// put at the key after a flush was announced.
func TestForeignObjectIsNotTakenForOurs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, small)
		l.overwrite = true
		l.bucket.Put(l.key(), filled(len(small), 99))
		l.intent = &wire.ObjectIntent{Kind: wire.IntentKind_INTENT_KIND_UPLOAD, Key: l.key(), Generation: 3, UploadId: "upload-gone",
			Completing: true, Size: uint64(len(small)), Crc: 1}
		l.queue(flushKind)
		defer l.start("n1")()
		l.waitIdle(t)
		l.requireFlushed(t)
	})
}

func TestEvict(t *testing.T) {
	for name, c := range map[string]struct {
		spoil   func(l *ledger)
		evicted bool
	}{
		"right":       {func(*ledger) {}, true},
		"deleted":     {func(l *ledger) { _ = l.bucket.Delete(context.Background(), refOf(l.key())) }, false},
		"overwritten": {func(l *ledger) { l.bucket.Put(l.key(), small) }, false},
		"spoilt":      {func(l *ledger) { l.bucket.Spoil(l.key()) }, false},
		"written": {func(l *ledger) {
			l.at(step{"store head", 0}, func() (func(error) error, error) { l.write(small[:10]); return nil, nil })
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(t, small)
				l.queue(flushKind)
				defer l.start("n1")()
				l.waitIdle(t)
				c.spoil(l)
				l.queue(wire.JobKind_JOB_KIND_EVICT)
				eventually(t, 10*time.Minute, "an end", func() bool {
					l.mu.Lock()
					defer l.mu.Unlock()
					return l.kind == 0 && len(l.kinds) == 0 || len(l.finished) > 0
				})
				if name == "written" {
					require.Empty(t, l.finished, "the file changed: there is nothing to evict")
				}
				require.Equal(t, c.evicted, l.evicted)
			})
		})
	}
}

func TestDeleteObject(t *testing.T) {
	for _, c := range []struct {
		name  string
		op    string
		err   error
		lost  bool
		final bool // the intent stays, because the answer was lost
	}{
		{name: "right"},
		{name: "head fails", op: "store head", err: objecttest.Failure(moraine.Unavailable, false)},
		{name: "refused", op: "store delete", err: objecttest.Failure(moraine.PermissionDenied, true)},
		{name: "lost", op: "store delete", err: objecttest.Failure(moraine.Unavailable, false), lost: true, final: true},
		{name: "answer lost", op: "meta DeletedObject", err: objecttest.Failure(moraine.Unavailable, false)},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(t, small)
				l.queue(flushKind)
				defer l.start("n1")()
				l.waitIdle(t)
				id := l.file().Object
				open := false
				l.at(step{c.op, 0}, func() (func(error) error, error) {
					if c.lost {
						return func(error) error {
							open = true
							return c.err
						}, nil
					}
					return nil, c.err
				})
				l.queue(wire.JobKind_JOB_KIND_DELETE_OBJECT)
				l.waitIdle(t)
				require.Equal(t, []uint64{id}, l.deleted)
				require.Empty(t, l.bucket.Keys())
				require.Equal(t, c.final, open)
			})
		})
	}
}

// TestDeleteLeavesOthersAlone: an object of another program at the key stays.
func TestDeleteLeavesOthersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, small)
		l.queue(flushKind)
		defer l.start("n1")()
		l.waitIdle(t)
		l.bucket.Put(l.key(), []byte("somebody else's"))
		l.queue(wire.JobKind_JOB_KIND_DELETE_OBJECT)
		l.waitIdle(t)
		require.Len(t, l.deleted, 1)
		require.Equal(t, []byte("somebody else's"), l.bucket.Bytes(l.key()))
	})
}

// A store may answer with bytes that are no text. The job still ends with an error, which is
// counted and shown.
func TestWhateverABucketSaysJobsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, small)
		l.at(step{"store new_upload", 0}, func() (func(error) error, error) {
			return nil, object.MakeError(moraine.PermissionDenied, true, errors.New("gr\xfc\xdfe \xff"+strings.Repeat("é", 5000)))
		})
		l.queue(flushKind)
		defer l.start("n1")()
		l.waitIdle(t)
		l.requireFlushed(t)
		require.True(t, l.failed("gr")())
	})
}
