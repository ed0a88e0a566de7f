package mover_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport/wire"
)

// failed reports whether a job ended with an error that contains text.
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

// A store keeps other bytes than it was sent, with the ETag of the sent ones. The mover detects
// that before it records the object, and flushes again.
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

// With the store's CRC of the whole the mover need not read back.
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

// The mover also compares the copy of an object that must stay, before it uses the object's
// key.
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

// The mover does not overwrite a foreign object at the key, unless the policy allows it,
// whether the store supports conditions or not.
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
				require.Equal(t, moraine.Exists, l.failure, "the service knows by it that the flush is blocked")
				l.overwrite = true
				l.mu.Unlock()
				l.waitIdle(t)
				l.requireFlushed(t)
			})
		})
	}
}

// Nor does it overwrite one that appears during the upload.
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
