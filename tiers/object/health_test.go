package object_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/object"
)

// answers is a store that gives the same answer to every request.
type answers struct{ status atomic.Int64 } // 0: it hangs

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	status := int(a.status.Load())
	if status == 0 {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Etag": {`"x"`}, "Last-Modified": {time.Now().UTC().Format(http.TimeFormat)}},
		Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

// TestHealthOfABucket: the health of a bucket is unknown before the first request.
// A bucket that hangs, refuses, or is missing has failed since the first such
// request. A missing key is an answer. A request that fails now and then is no
// failure of the bucket.
func TestHealthOfABucket(t *testing.T) {
	store := &answers{}
	b, err := object.New(object.Config{Bucket: "bucket", Endpoint: "http://store:1", AccessKey: "a", SecretKey: "s"}, object.Deps{Transport: store})
	require.NoError(t, err)
	require.Equal(t, object.Health{}, b.Health())
	watch := func(status int) object.Health {
		store.status.Store(int64(status))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if status != 0 {
			ctx = t.Context()
		}
		b.Watch(ctx, 0)
		return b.Health()
	}
	head := func(status int) object.Health {
		store.status.Store(int64(status))
		_, err := b.Head(t.Context(), object.Ref{Key: "k"})
		require.Error(t, err)
		return b.Health()
	}
	require.NoError(t, watch(http.StatusOK).Err)
	for name, status := range map[string]int{"refused": http.StatusForbidden, "failing": http.StatusInternalServerError, "gone": http.StatusNotFound, "hanging": 0} {
		began := time.Now()
		h := watch(status)
		require.Error(t, h.Err, name)
		require.True(t, h.Tried)
		require.False(t, h.Since.Before(began), name)
		again := watch(status)
		require.Equal(t, h.Since, again.Since, "since the first that failed")
		require.NoError(t, head(http.StatusNotFound).Err, "no such key is an answer")
	}
	require.Equal(t, moraine.PermissionDenied, moraine.KindOf(watch(http.StatusForbidden).Err))
	require.NoError(t, watch(http.StatusOK).Err)
	require.NoError(t, head(http.StatusInternalServerError).Err, "one that fails now and then")
	require.NoError(t, head(http.StatusInternalServerError).Err)
	require.Error(t, head(http.StatusInternalServerError).Err, "and the third in a row")

	store.status.Store(http.StatusOK)
	b.Watch(t.Context(), 0)
	store.status.Store(http.StatusForbidden)
	b.Watch(t.Context(), time.Hour)
	require.NoError(t, b.Health().Err, "a bucket that answered within idle is not probed")
}
