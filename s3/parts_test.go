package s3_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/testseed"
)

// manyParts makes parts of an upload. Each is a copy of another range of one
// object, of the least length of a part. All of them share the bytes of that
// object, so that thousands cost nothing.
func manyParts(t *testing.T, c *minio.Core, b, key, id string, source []byte, parts int) []minio.CompletePart {
	t.Helper()
	put(t, c, b, "source", source, minio.PutObjectOptions{})
	done := make([]minio.CompletePart, parts)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < parts; i += 8 {
				p, err := c.CopyObjectPart(t.Context(), b, "source", b, key, id, i+1, shiftOf(i), minPart, nil)
				if err != nil {
					t.Error(err)
					return
				}
				done[i] = p
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return done
}

// shiftOf is where in the source a part begins.
func shiftOf(part int) int64 { return int64(part) * 4099 % (1 << 20) }

// An upload of hundreds of parts, completed by two concurrent requests and by a
// third later one, is one object with one ETag. So is one of 10,000, in the long
// form.
func TestCompletingAtOnce(t *testing.T) {
	parts := testseed.Of(530, 10_000) // more than one command of the metadata service accepts
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "many-parts")
	id, err := c.NewMultipartUpload(ctx, b, "k", minio.PutObjectOptions{})
	require.NoError(t, err)
	source := bytesOf(7, minPart+1<<20)
	done := manyParts(t, c, b, "k", id, source, parts)
	before := shared.client.Stats().WrittenBytes
	began := time.Now()
	tags := make([]string, 2)
	var wg sync.WaitGroup
	for n := range tags {
		wg.Go(func() {
			info, err := c.CompleteMultipartUpload(ctx, b, "k", id, done, minio.PutObjectOptions{})
			if err != nil {
				t.Errorf("completion %d: %v", n, err)
			}
			tags[n] = info.ETag
		})
	}
	wg.Wait()
	t.Logf("two completions of %d parts at once took %s", parts, time.Since(began).Round(time.Millisecond))
	require.Equal(t, before, shared.client.Stats().WrittenBytes, "bytes were moved")
	late, err := c.CompleteMultipartUpload(ctx, b, "k", id, done, minio.PutObjectOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{late.ETag, late.ETag}, tags)
	for e, err := range shared.client.ReadDir(ctx, "/"+b+"/.moraine.uploads") {
		require.NoError(t, err)
		t.Errorf("%s was left", e.Name)
	}
	a, err := shared.client.Stat(ctx, "/"+b+"/k")
	require.NoError(t, err)
	require.EqualValues(t, int64(parts)*minPart, a.Size())
	r, err := shared.client.Inodes().Open(ctx, a.Inode())
	require.NoError(t, err)
	defer r.Close()
	for i := 0; i < parts; i += max(parts/40, 1) { // across the end of a part, into the next
		have := make([]byte, 8000)
		at := int64(i)*minPart + minPart - 4000
		want := source[shiftOf(i)+minPart-4000:][:4000]
		if i == parts-1 {
			have = have[:4000]
		} else {
			want = append(bytes.Clone(want), source[shiftOf(i+1):][:4000]...)
		}
		_, err := r.ReadAt(ctx, have, at)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, have), fmt.Sprintf("part %d", i+1))
	}
}
