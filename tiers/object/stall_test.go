package object_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/object"
)

// openAt opens a bucket at a server of the test's own.
func openAt(t *testing.T, handler http.HandlerFunc) *object.Bucket {
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	b, err := object.New(object.Config{Bucket: "b-ucket", Endpoint: s.URL, AccessKey: "a", SecretKey: "s", StallTimeout: 200 * time.Millisecond}, object.Deps{})
	require.NoError(t, err)
	return b
}

// TestRequestsToAHangingStoreEnd: a store accepts a connection and never answers, or
// stops in the middle of a request or an answer. Callers do not wait for ever, and
// the outcome counts as unknown.
func TestRequestsToAHangingStoreEnd(t *testing.T) {
	for name, handler := range map[string]func(w http.ResponseWriter, end chan struct{}){
		"says nothing": func(_ http.ResponseWriter, end chan struct{}) { <-end },
		"stops": func(w http.ResponseWriter, end chan struct{}) {
			w.Header().Set("ETag", `"x"`)
			w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write([]byte("half"))
			w.(http.Flusher).Flush()
			<-end
		},
	} {
		t.Run(name, func(t *testing.T) {
			end := make(chan struct{})
			b := openAt(t, func(w http.ResponseWriter, _ *http.Request) { handler(w, end) })
			t.Cleanup(func() { close(end) })
			err := b.Get(t.Context(), object.Ref{Key: "k"}, 0, make([]byte, 100))
			require.ErrorIs(t, err, moraine.Unavailable)
			require.False(t, object.Refused(err))
			if name == "stops" {
				return
			}
			require.ErrorIs(t, b.Delete(t.Context(), object.Ref{Key: "k"}), moraine.Unavailable)
			_, err = b.PutPart(t.Context(), "k", "id", 1, make([]byte, 32<<20), 0)
			require.ErrorIs(t, err, moraine.Unavailable)
			require.False(t, object.Refused(err))
		})
	}
}

// TestASlowStoreIsWaitedFor: a request continues as long as bytes move, however
// few.
func TestASlowStoreIsWaitedFor(t *testing.T) {
	b := openAt(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"x"`)
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		w.Header().Set("Content-Length", "20")
		w.WriteHeader(http.StatusPartialContent)
		for range 20 {
			_, _ = w.Write([]byte("x"))
			w.(http.Flusher).Flush()
			time.Sleep(20 * time.Millisecond)
		}
	})
	got := make([]byte, 20)
	require.NoError(t, b.Get(t.Context(), object.Ref{Key: "k"}, 0, got))
	require.Equal(t, "xxxxxxxxxxxxxxxxxxxx", string(got))
}

// TestAListingThatDoesNotGoOnEnds: a store returns markers that lead back to the
// beginning.
func TestAListingThatDoesNotGoOnEnds(t *testing.T) {
	for name, next := range map[string]func(marker string) string{
		"to the beginning": func(m string) string {
			if m == "" {
				return "id-1"
			}
			return ""
		},
		"between two": func(m string) string {
			if m == "id-1" {
				return "id-2"
			}
			return "id-1"
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := openAt(t, func(w http.ResponseWriter, r *http.Request) {
				id := next(r.URL.Query().Get("upload-id-marker"))
				key := "k"
				if id == "" {
					key = ""
				}
				fmt.Fprintf(w, `<?xml version="1.0"?><ListMultipartUploadsResult><Bucket>b-ucket</Bucket><IsTruncated>true</IsTruncated>`+
					`<NextKeyMarker>%s</NextKeyMarker><NextUploadIdMarker>%s</NextUploadIdMarker>`+
					`<Upload><Key>k</Key><UploadId>u%s</UploadId></Upload></ListMultipartUploadsResult>`, key, id, id)
			})
			_, err := b.Uploads(t.Context(), "k")
			require.ErrorIs(t, err, moraine.Unavailable)
		})
	}
}
