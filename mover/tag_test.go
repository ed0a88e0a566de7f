package mover_test

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/tiers/object/objecttest"
)

// tagKey is the user metadata with the tag (docs/formats/object-keys.md).
const tagKey = "moraine-upload"

// tagged is a bucket that changes the tags of uploads; nil: it does not.
type tagged struct {
	*objecttest.Memory
	tags func(tag string) string
}

// NewUpload implements object.Store.
func (b tagged) NewUpload(ctx context.Context, key string, meta map[string]string) (string, error) {
	if b.tags != nil {
		meta = maps.Clone(meta)
		meta[tagKey] = b.tags(meta[tagKey])
	}
	return b.Memory.NewUpload(ctx, key, meta)
}

// TestFlippedBitsOfTheTagAreFound: a bit of an object's tag flips on its way to the bucket. The
// mover does not record the object. It flushes again, or, if the tag now names another cluster
// or file, it treats the object as foreign, leaves it, and the flush fails.
func TestFlippedBitsOfTheTagAreFound(t *testing.T) {
	var again, refused int
	for bit, bits := 0, 1; bit < bits; bit++ {
		synctest.Test(t, func(t *testing.T) {
			l := newLedger(t, small)
			var tag string
			l.tags = func(right string) string {
				if tag != "" {
					return right
				}
				wrong := []byte(right)
				wrong[bit/8] ^= 1 << (bit % 8)
				bits, tag = 8*len(wrong), string(wrong)
				return tag
			}
			l.queue(flushKind)
			defer l.start("n1")()
			flushed := func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				return l.attr.Clean
			}
			foreign := l.failed("did not write")
			eventually(t, 10*time.Minute, "the flush is made again, or refused", func() bool { return flushed() || foreign() })
			require.True(t, l.failed("the bucket has")() || foreign(), "bit %d: nothing is reported", bit)
			if flushed() {
				again++
				l.waitIdle(t)
				l.requireFlushed(t)
				return
			}
			refused++
			require.Empty(t, l.objects, "bit %d: an object with another tag is recorded", bit)
			info, err := l.bucket.Head(t.Context(), refOf(l.key()))
			require.NoError(t, err)
			require.Equal(t, tag, info.Meta[tagKey], "bit %d: the object is left", bit)
		})
	}
	t.Logf("%d flushes made again, %d refused", again, refused)
	require.Positive(t, again)
	require.Positive(t, refused)
}
