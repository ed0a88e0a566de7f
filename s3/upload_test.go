package s3_test

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
)

// minPart is the least length of a part that is not the last.
const minPart = 5 << 20

// putPart puts a part.
func putPart(t *testing.T, c *minio.Core, bucket, key, id string, number int, data []byte) minio.CompletePart {
	t.Helper()
	p, err := c.PutObjectPart(t.Context(), bucket, key, id, number, bytes.NewReader(data), int64(len(data)), minio.PutObjectPartOptions{})
	require.NoError(t, err)
	return minio.CompletePart{PartNumber: number, ETag: p.ETag}
}

// The parts of an upload become one object, in one step, with the metadata given at
// its start. No part and no bookkeeping is left.
func TestMultipart(t *testing.T) {
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "multipart")
	id, err := c.NewMultipartUpload(ctx, b, "d/k", minio.PutObjectOptions{ContentType: "text/x-test", UserMetadata: map[string]string{"Colour": "green"}})
	require.NoError(t, err)
	one, two, three := bytesOf(1, minPart), bytesOf(2, minPart+1), bytesOf(3, 1234)
	last := putPart(t, c, b, "d/k", id, 30, three)
	putPart(t, c, b, "d/k", id, 1, two) // replaced by the next put
	first := putPart(t, c, b, "d/k", id, 1, one)
	second := putPart(t, c, b, "d/k", id, 2, two)
	putPart(t, c, b, "d/k", id, 3, three) // not chosen

	require.Empty(t, listAll(t, c, b, "", ""), "parts are not objects")
	parts, err := c.ListObjectParts(ctx, b, "d/k", id, 1, 2)
	require.NoError(t, err)
	require.Len(t, parts.ObjectParts, 2)
	require.Equal(t, []int{2, 3}, []int{parts.ObjectParts[0].PartNumber, parts.ObjectParts[1].PartNumber})
	require.True(t, parts.IsTruncated)
	require.EqualValues(t, minPart+1, parts.ObjectParts[0].Size)
	uploads, err := c.ListMultipartUploads(ctx, b, "d/", "", "", "", 10)
	require.NoError(t, err)
	require.Len(t, uploads.Uploads, 1)
	require.Equal(t, id, uploads.Uploads[0].UploadID)

	wrong := second
	wrong.ETag = first.ETag
	for code_, chosen := range map[string][]minio.CompletePart{"InvalidPart": {first, wrong}, "InvalidPartOrder": {second, first},
		"EntityTooSmall": {first, last, {PartNumber: 31, ETag: "x"}}} {
		_, err = c.CompleteMultipartUpload(ctx, b, "d/k", id, chosen, minio.PutObjectOptions{})
		require.Equal(t, code_, code(err))
	}
	_, err = c.CompleteMultipartUpload(ctx, b, "other", id, []minio.CompletePart{first}, minio.PutObjectOptions{})
	require.Equal(t, "NoSuchUpload", code(err))

	before := shared.client.Stats().WrittenBytes
	done, err := c.CompleteMultipartUpload(ctx, b, "d/k", id, []minio.CompletePart{first, second, last}, minio.PutObjectOptions{})
	require.NoError(t, err)
	require.Equal(t, before, shared.client.Stats().WrittenBytes, "bytes were moved")
	want := bytes.Join([][]byte{one, two, three}, nil)
	got, info := get(t, c, b, "d/k", minio.GetObjectOptions{})
	require.True(t, bytes.Equal(want, got))
	require.Equal(t, "text/x-test", info.ContentType)
	require.Equal(t, "green", info.UserMetadata["Colour"])
	require.Equal(t, strings.Trim(done.ETag, `"`), info.ETag)
	part, _ := get(t, c, b, "d/k", minio.GetObjectOptions{PartNumber: 2})
	require.True(t, bytes.Equal(two, part))

	again, err := c.CompleteMultipartUpload(ctx, b, "d/k", id, []minio.CompletePart{first, second, last}, minio.PutObjectOptions{})
	require.NoError(t, err, "a client that did not see the answer asks again")
	require.Equal(t, done.ETag, again.ETag)
	for e, err := range shared.client.ReadDir(ctx, "/"+b+"/.moraine.uploads") {
		require.NoError(t, err)
		t.Errorf("%s was left", e.Name)
	}
}

// An aborted upload is gone with its parts; later requests are refused.
func TestAbortUpload(t *testing.T) {
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "abort")
	id, err := c.NewMultipartUpload(ctx, b, "k", minio.PutObjectOptions{})
	require.NoError(t, err)
	part := putPart(t, c, b, "k", id, 1, []byte("x"))
	require.NoError(t, c.AbortMultipartUpload(ctx, b, "k", id))
	_, err = c.PutObjectPart(ctx, b, "k", id, 2, strings.NewReader("x"), 1, minio.PutObjectPartOptions{})
	require.Equal(t, "NoSuchUpload", code(err))
	_, err = c.CompleteMultipartUpload(ctx, b, "k", id, []minio.CompletePart{part}, minio.PutObjectOptions{})
	require.Equal(t, "NoSuchUpload", code(err))
	require.Equal(t, "NoSuchUpload", code(c.AbortMultipartUpload(ctx, b, "k", id)))
	require.Empty(t, listAll(t, c, b, "", ""))
	_, err = c.NewMultipartUpload(ctx, b, "k", minio.PutObjectOptions{})
	require.NoError(t, err)
	require.NoError(t, c.RemoveBucket(ctx, b), "an upload that was not completed does not hold a bucket")
	_, err = shared.client.Stat(ctx, "/"+b)
	require.ErrorIs(t, err, moraine.NotFound)
}

// Two uploads of one key, completed concurrently, leave one of them, whole.
func TestUploadsAtOnce(t *testing.T) {
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "at-once")
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			id, err := c.NewMultipartUpload(ctx, b, "k", minio.PutObjectOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			p, err := c.PutObjectPart(ctx, b, "k", id, 1, bytes.NewReader(bytesOf(uint64(i), 300_000)), 300_000, minio.PutObjectPartOptions{})
			if err == nil {
				_, err = c.CompleteMultipartUpload(ctx, b, "k", id, []minio.CompletePart{{PartNumber: 1, ETag: p.ETag}}, minio.PutObjectOptions{})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got, _ := get(t, c, b, "k", minio.GetObjectOptions{})
	whole := false
	for i := range 3 {
		whole = whole || bytes.Equal(got, bytesOf(uint64(i), 300_000))
	}
	require.True(t, whole)
}

// A copy shares the bytes of its source: none moves, and neither sees changes of
// the other.
func TestCopy(t *testing.T) {
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "copy")
	data := bytesOf(1, 3_000_000)
	put(t, c, b, "from", data, minio.PutObjectOptions{ContentType: "text/x-test", UserMetadata: map[string]string{"Colour": "blue"}})
	before := shared.client.Stats().WrittenBytes
	_, err := c.Client.CopyObject(ctx, minio.CopyDestOptions{Bucket: b, Object: "d/to"}, minio.CopySrcOptions{Bucket: b, Object: "from"})
	require.NoError(t, err)
	_, err = c.Client.CopyObject(ctx, minio.CopyDestOptions{Bucket: b, Object: "renamed", ReplaceMetadata: true, UserMetadata: map[string]string{"Colour": "red"}},
		minio.CopySrcOptions{Bucket: b, Object: "from"})
	require.NoError(t, err)
	require.Equal(t, before, shared.client.Stats().WrittenBytes, "bytes were moved")
	require.NoError(t, c.RemoveObject(ctx, b, "from", minio.RemoveObjectOptions{}))
	got, info := get(t, c, b, "d/to", minio.GetObjectOptions{})
	require.True(t, bytes.Equal(data, got))
	require.Equal(t, "text/x-test", info.ContentType)
	require.Equal(t, "blue", info.UserMetadata["Colour"])
	got, info = get(t, c, b, "renamed", minio.GetObjectOptions{})
	require.True(t, bytes.Equal(data, got))
	require.Equal(t, "red", info.UserMetadata["Colour"])
	_, err = c.Client.CopyObject(ctx, minio.CopyDestOptions{Bucket: b, Object: "x"}, minio.CopySrcOptions{Bucket: b, Object: "from"})
	require.Equal(t, "NoSuchKey", code(err))

	id, err := c.NewMultipartUpload(ctx, b, "parts", minio.PutObjectOptions{})
	require.NoError(t, err)
	var parts []minio.CompletePart
	for i, r := range [][2]int64{{100, 1_500_000}} {
		p, err := c.CopyObjectPart(ctx, b, "renamed", b, "parts", id, i+1, r[0], r[1], nil)
		require.NoError(t, err)
		parts = append(parts, p)
	}
	_, err = c.CompleteMultipartUpload(ctx, b, "parts", id, parts, minio.PutObjectOptions{})
	require.NoError(t, err)
	got, _ = get(t, c, b, "parts", minio.GetObjectOptions{})
	require.True(t, bytes.Equal(data[100:1_500_100], got), fmt.Sprint(len(got)))
}
