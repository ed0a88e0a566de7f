package mover_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport/wire"
)

// failed reports whether a job ended with an error that says so.
func (l *ledger) failed(text string) func() bool {
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, f := range l.finished {
			if strings.Contains(f, text) {
				return true
			}
		}
		return false
	}
}

// A store that keeps other bytes than it was sent, with an ETag as if it had not, is
// found out before the object is recorded, and the flush is made again.
func TestFlippedBitsAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, small)
		l.bucket.Support(object.Traits{})
		l.bucket.FlipNext()
		l.queue(flushKind)
		defer l.start("n1")()
		l.waitIdle(t)
		l.requireFlushed(t)
		require.True(t, l.failed("keeps other bytes")())
		require.Equal(t, wire.Verified_VERIFIED_READ_BACK, l.objects[l.attr.Object].Verified)
	})
}

// The store's CRC of the whole spares the read-back.
func TestStoreCRCVerifies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, small)
		gets := 0
		l.bucket.SetHook(func(_ context.Context, op, _ string) (func(error) error, error) {
			if op == "get" {
				gets++
			}
			return nil, nil
		})
		l.queue(flushKind)
		defer l.start("n1")()
		l.waitIdle(t)
		l.requireFlushed(t)
		require.Equal(t, wire.Verified_VERIFIED_STORE_CRC, l.objects[l.attr.Object].Verified)
		require.Zero(t, gets)
	})
}

// The copy of an object that must stay is compared too, before its key is given up.
func TestFlippedBitsOfCopiesAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, small)
		l.bucket.Support(object.Traits{})
		l.queue(flushKind)
		defer l.start("n1")()
		l.waitIdle(t)
		old := l.objects[l.attr.Object]
		l.keep = true
		l.write(filled(777, 5))
		l.bucket.FlipNext()
		l.queue(flushKind)
		eventually(t, 10*time.Minute, "the copy is refused", l.failed("keeps other bytes"))
		l.waitIdle(t)
		require.True(t, old.Kept)
		require.Equal(t, small, l.bucket.Bytes(old.Key))
	})
}

// An object at the key that this cluster did not write is not overwritten, unless the
// policy says so, whether the store knows conditions or not.
func TestForeignObjectsAreNotOverwritten(t *testing.T) {
	for name, traits := range map[string]object.Traits{"with conditions": {WholeCRC: true, IfNoneMatch: true, IfMatch: true}, "without": {}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(t, small)
				l.bucket.Support(traits)
				theirs := filled(333, 9)
				l.bucket.Put(l.key(), theirs)
				l.queue(flushKind)
				defer l.start("n1")()
				eventually(t, 10*time.Minute, "the flush is refused", l.failed("did not write is at s3://memory/tier/dir/file"))
				require.True(t, l.failed("moraine policy set --foreign overwrite")())
				require.Equal(t, theirs, l.bucket.Bytes(l.key()))
				l.mu.Lock()
				l.overwrite = true
				l.mu.Unlock()
				l.waitIdle(t)
				l.requireFlushed(t)
			})
		})
	}
}

// One that appears while the file is uploaded is not overwritten either.
func TestForeignObjectsThatComeLateAreNotOverwritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, small)
		theirs := filled(333, 9)
		l.at(step{"store complete", 0}, func() (func(error) error, error) {
			l.bucket.Put(l.key(), theirs)
			return nil, nil
		})
		l.queue(flushKind)
		defer l.start("n1")()
		eventually(t, 10*time.Minute, "the flush is refused", l.failed("did not write"))
		require.Equal(t, theirs, l.bucket.Bytes(l.key()))
	})
}
