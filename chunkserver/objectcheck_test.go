package chunkserver_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/object/objecttest"
	"github.com/morainefs/moraine/transport/wire"
)

// reported waits for the next reported object.
func (s *shelf) reported() (w *wire.ObjectCheck) {
	s.meta.mu.Lock()
	defer s.meta.mu.Unlock()
	for len(s.meta.found) == 0 {
		s.meta.changed.Wait()
	}
	w, s.meta.found = s.meta.found[0], s.meta.found[1:]
	return w
}

// compared makes the metadata service request a comparison of the object, and
// returns the result.
func (s *shelf) compared(read bool, offset uint64) *wire.ObjectCheck {
	s.meta.set(func() {
		s.meta.compare = []*wire.ObjectToCheck{{Object: s.meta.objects[5].Object, Read: read, Offset: offset}}
	})
	return s.reported()
}

// TestWhatTheBucketLostIsReported: the server reports it when it reads a piece, and
// in the comparison that the metadata service requests. The comparison also reports
// that all is good, or that the store does not answer.
func TestWhatTheBucketLostIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		spoil      func(s *shelf)
		read, head wire.ObjectState
	}{
		"deleted": {func(s *shelf) { _ = s.bucket.Delete(context.Background(), refOf("tier/f")) },
			wire.ObjectState_OBJECT_STATE_MISSING, wire.ObjectState_OBJECT_STATE_MISSING},
		"overwritten": {func(s *shelf) { s.bucket.Put("tier/f", s.data[1:]) },
			wire.ObjectState_OBJECT_STATE_DIFFERS, wire.ObjectState_OBJECT_STATE_DIFFERS},
		"spoilt": {func(s *shelf) { s.bucket.Spoil("tier/f") },
			wire.ObjectState_OBJECT_STATE_CORRUPT, wire.ObjectState_OBJECT_STATE_DIFFERS}, // this store reports the CRC32C of its objects
	} {
		t.Run(name, func(t *testing.T) {
			s := startWithBucket(t, nil)
			require.Equal(t, wire.ObjectState_OBJECT_STATE_GOOD, s.compared(false, 0).State)
			good := s.compared(true, testPiece)
			require.Equal(t, wire.ObjectState_OBJECT_STATE_GOOD, good.State)
			require.True(t, good.Read)
			require.EqualValues(t, testPiece, good.Offset)

			c.spoil(s)
			middle := uint64(len(s.data)/2) / testPiece * testPiece
			require.Error(t, s.read(t.Context(), t, int(middle), 20))
			w := s.reported()
			require.Equal(t, c.read, w.State)
			require.Equal(t, middle, w.Offset)
			require.NotEmpty(t, w.Error)
			require.EqualValues(t, 5, w.Object.Id)
			require.NotEmpty(t, w.Object.Etag)
			require.Equal(t, c.head, s.compared(true, middle).State)
		})
	}
	t.Run("no answer", func(t *testing.T) {
		s := startWithBucket(t, nil)
		s.bucket.SetHook(func(context.Context, string, string) (func(error) error, error) {
			return nil, objecttest.Failure(moraine.Unavailable, false)
		})
		require.Equal(t, wire.ObjectState_OBJECT_STATE_UNKNOWN, s.compared(false, 0).State)
		require.Error(t, s.read(t.Context(), t, 0, 20))
		s.bucket.SetHook(nil)
		require.Equal(t, wire.ObjectState_OBJECT_STATE_GOOD, s.compared(false, 0).State, "the read has reported nothing")
	})
	t.Run("of another bucket", func(t *testing.T) {
		s := startWithBucket(t, nil)
		s.meta.set(func() { s.meta.objects[5].Object.Bucket = "another" })
		_ = s.bucket.Delete(context.Background(), refOf("tier/f"))
		require.Error(t, s.read(t.Context(), t, 0, 20))
		require.Equal(t, wire.ObjectState_OBJECT_STATE_UNKNOWN, s.compared(false, 0).State)
	})
}
