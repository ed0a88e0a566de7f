package s3_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// A GET, and a read of the file, return the bytes and headers of the PUT.
func TestPutGet(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "put-get")
	for _, size := range []int{0, 1, 4095, 4096, 300_000, 1 << 20, 1<<20 + 1, 5_000_001} {
		key, data := fmt.Sprintf("dir/sub dir/%d.bin", size), bytesOf(uint64(size), size)
		info := put(t, c, b, key, data, minio.PutObjectOptions{ContentType: "text/x-test", CacheControl: "no-store",
			ContentDisposition: "inline", ContentEncoding: "identity", UserMetadata: map[string]string{"Colour": "blue"}})
		got, stat := get(t, c, b, key, minio.GetObjectOptions{})
		require.True(t, bytes.Equal(data, got), "%d bytes", size)
		require.Equal(t, info.ETag, stat.ETag)
		require.Equal(t, "text/x-test", stat.ContentType)
		require.Equal(t, "blue", stat.UserMetadata["Colour"])
		require.Equal(t, "no-store", stat.Metadata.Get("Cache-Control"))
		require.Equal(t, "inline", stat.Metadata.Get("Content-Disposition"))
		head, err := c.StatObject(t.Context(), b, key, minio.StatObjectOptions{})
		require.NoError(t, err)
		require.EqualValues(t, size, head.Size)
		require.Equal(t, info.ETag, head.ETag)

		r, err := shared.client.OpenFile(t.Context(), "/"+b+"/"+key)
		require.NoError(t, err)
		file, err := io.ReadAll(r.NewStream(t.Context(), 0))
		require.NoError(t, err)
		require.NoError(t, r.Close())
		require.True(t, bytes.Equal(data, file))
	}
	_, err := c.StatObject(t.Context(), b, "nothing", minio.StatObjectOptions{})
	require.Equal(t, "NoSuchKey", code(err))
	_, err = c.StatObject(t.Context(), b, "dir/sub dir/0.bin/below", minio.StatObjectOptions{})
	require.Equal(t, "NoSuchKey", code(err))
	_, err = c.StatObject(t.Context(), b, "dir", minio.StatObjectOptions{})
	require.Equal(t, "NoSuchKey", code(err), "a directory is no object")
	_, err = c.StatObject(t.Context(), "no-such-bucket", "k", minio.StatObjectOptions{})
	require.Contains(t, []string{"NoSuchBucket", "NoSuchKey"}, code(err))
}

// A range is exactly the bytes that it names.
func TestRanges(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b, data := bucket(t, c, "ranges"), bytesOf(1, 3_000_001)
	put(t, c, b, "k", data, minio.PutObjectOptions{})
	size := int64(len(data))
	for _, r := range [][2]int64{{0, 0}, {0, 9}, {100, 2_000_000}, {65_535, 65_536}, {size - 1, size - 1}, {1, size - 1}, {5, size + 100}} {
		var opts minio.GetObjectOptions
		require.NoError(t, opts.SetRange(r[0], r[1]))
		got, _ := get(t, c, b, "k", opts)
		require.True(t, bytes.Equal(data[r[0]:min(size, r[1]+1)], got), "%v", r)
	}
	suffix := minio.GetObjectOptions{}
	require.NoError(t, suffix.SetRange(0, -7))
	got, _ := get(t, c, b, "k", suffix)
	require.Equal(t, data[size-7:], got)
	past := minio.GetObjectOptions{}
	require.NoError(t, past.SetRange(size, size+1))
	_, _, _, err := c.GetObject(t.Context(), b, "k", past)
	require.Equal(t, "InvalidRange", code(err))
}

// Conditions hold: on reads, and If-None-Match on a PUT in one step with the
// commit.
func TestConditions(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "conditions")
	first := put(t, c, b, "k", []byte("one"), minio.PutObjectOptions{})
	var opts minio.GetObjectOptions
	require.NoError(t, opts.SetMatchETagExcept(first.ETag))
	_, _, _, err := c.GetObject(t.Context(), b, "k", opts)
	require.Equal(t, http.StatusNotModified, minio.ToErrorResponse(err).StatusCode)
	opts = minio.GetObjectOptions{}
	require.NoError(t, opts.SetMatchETag("0123"))
	_, _, _, err = c.GetObject(t.Context(), b, "k", opts)
	require.Equal(t, "PreconditionFailed", code(err))

	putIf := func(key, data string, set func(*minio.PutObjectOptions)) error {
		o := minio.PutObjectOptions{DisableMultipart: true}
		set(&o)
		_, err := c.Client.PutObject(t.Context(), b, key, strings.NewReader(data), int64(len(data)), o)
		return err
	}
	require.Equal(t, "PreconditionFailed", code(putIf("k", "two", func(o *minio.PutObjectOptions) { o.SetMatchETagExcept("*") })))
	require.Equal(t, "PreconditionFailed", code(putIf("k", "two", func(o *minio.PutObjectOptions) { o.SetMatchETag("0123") })))
	require.NoError(t, putIf("k", "two", func(o *minio.PutObjectOptions) { o.SetMatchETag(first.ETag) }))

	// Of many concurrent requests for a new object exactly one makes it.
	var wg sync.WaitGroup
	made := make(chan int, 8)
	for i := range cap(made) {
		wg.Go(func() {
			err := putIf("new", strings.Repeat(fmt.Sprint(i), 1000), func(o *minio.PutObjectOptions) { o.SetMatchETagExcept("*") })
			if err == nil {
				made <- i
			} else if c := code(err); c != "PreconditionFailed" {
				t.Errorf("answered %s: %v", c, err)
			}
		})
	}
	wg.Wait()
	require.Len(t, made, 1)
	got, _ := get(t, c, b, "new", minio.GetObjectOptions{})
	require.Equal(t, strings.Repeat(fmt.Sprint(<-made), 1000), string(got))
}

// Of two uploads of one key one stays, whole. A reader that began before continues
// with the content that it began.
func TestOverwrites(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "overwrites")
	const size = 2 << 20
	first := put(t, c, b, "k", bytesOf(9, size), minio.PutObjectOptions{})
	slow, _, _, err := c.GetObject(t.Context(), b, "k", minio.GetObjectOptions{})
	require.NoError(t, err)
	defer slow.Close()
	begun := make([]byte, 1)
	_, err = io.ReadFull(slow, begun)
	require.NoError(t, err)

	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			data := bytesOf(uint64(i), size)
			_, err := c.Client.PutObject(t.Context(), b, "k", bytes.NewReader(data), size, minio.PutObjectOptions{DisableMultipart: true})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got, info := get(t, c, b, "k", minio.GetObjectOptions{})
	which := -1
	for i := range 4 {
		if bytes.Equal(got, bytesOf(uint64(i), size)) {
			which = i
		}
	}
	require.NotEqual(t, -1, which, "the object is none of those that were put")
	require.NotEqual(t, first.ETag, info.ETag)
	rest, err := io.ReadAll(slow)
	if err == nil {
		require.True(t, bytes.Equal(bytesOf(9, size), append(begun, rest...)), "an old reader got a mixture")
	}
}

// A change through another interface changes the ETag, and voids the checksum.
func TestETagFollowsContent(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "etags")
	sum := sumOf([]byte("hello"), minio.ChecksumCRC32C)
	status, answer := putSummed(t, c, b, "k", []byte("hello"), minio.ChecksumCRC32C, sum)
	require.Equal(t, http.StatusOK, status, answer)
	withSum := minio.StatObjectOptions{Checksum: true}
	stat, err := c.StatObject(t.Context(), b, "k", withSum)
	require.NoError(t, err)
	require.Equal(t, sum, stat.ChecksumCRC32C)
	before := stat.ETag
	require.Regexp(t, `^[0-9a-f]{32}-1$`, stat.ETag)

	f, err := shared.client.Create(t.Context(), "/"+b+"/k", client.CreateOptions{Replace: true})
	require.NoError(t, err)
	_, err = f.Write([]byte("changed"))
	require.NoError(t, err)
	_, err = f.Commit(t.Context())
	require.NoError(t, err)
	stat, err = c.StatObject(t.Context(), b, "k", withSum)
	require.NoError(t, err)
	require.NotEqual(t, before, stat.ETag)
	require.Empty(t, stat.ChecksumCRC32C)
	for o := range c.Client.ListObjects(t.Context(), b, minio.ListObjectsOptions{}) {
		require.NoError(t, o.Err)
		require.Equal(t, stat.ETag, o.ETag, "a listing says what a HEAD says")
	}
}

// A body that does not match its checksum is refused, and leaves no object.
func TestChecksums(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "checksums")
	data := bytesOf(1, 100_000)
	for _, sum := range []minio.ChecksumType{minio.ChecksumCRC32, minio.ChecksumCRC32C, minio.ChecksumCRC64NVME, minio.ChecksumSHA1, minio.ChecksumSHA256} {
		status, answer := putSummed(t, c, b, "good-"+sum.String(), data, sum, sumOf(data, sum))
		require.Equal(t, http.StatusOK, status, answer)
		status, answer = putSummed(t, c, b, "bad", data, sum, sumOf(data[1:], sum))
		require.Equal(t, http.StatusBadRequest, status)
		require.Contains(t, answer, "BadDigest")
	}
	_, err := c.PutObject(t.Context(), b, "bad", strings.NewReader("hello"), 5, "AAAAAAAAAAAAAAAAAAAAAA==", "", minio.PutObjectOptions{})
	require.Equal(t, "BadDigest", code(err))
	_, err = c.StatObject(t.Context(), b, "bad", minio.StatObjectOptions{})
	require.Equal(t, "NoSuchKey", code(err))
}

// An upload whose client disconnects in the middle leaves nothing.
func TestBrokenUpload(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "broken")
	u, err := c.PresignedPutObject(t.Context(), b, "k", time.Minute)
	require.NoError(t, err)
	conn, err := net.Dial("tcp", shared.endpoint)
	require.NoError(t, err)
	_, err = fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: %s\r\nContent-Length: 3000000\r\n\r\n", u.RequestURI(), shared.endpoint)
	require.NoError(t, err)
	_, err = conn.Write(bytesOf(1, 2_000_000))
	require.NoError(t, err)
	// A half close: the server sees the end of the body and can still answer.
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.NotContains(t, string(answer), "200 OK")
	conn.Close()
	_, err = c.StatObject(t.Context(), b, "k", minio.StatObjectOptions{})
	require.Equal(t, "NoSuchKey", code(err))
}

// A wrong key, a wrong secret, no signature and an expired URL are refused. A
// presigned URL permits exactly its request.
func TestSignatures(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "signatures")
	put(t, c, b, "k", []byte("secret"), minio.PutObjectOptions{})
	for _, wrong := range []struct{ access, secret, code string }{
		{"nobody", secretKey, "InvalidAccessKeyId"}, {accessKey, "wrong", "SignatureDoesNotMatch"}} {
		_, _, _, err := dial(t, wrong.access, wrong.secret).GetObject(t.Context(), b, "k", minio.GetObjectOptions{})
		require.Equal(t, wrong.code, code(err))
	}
	fetch := func(method string, u *url.URL, body string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, u.String(), strings.NewReader(body))
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(data)
	}
	status, _ := fetch(http.MethodGet, &url.URL{Scheme: "http", Host: shared.endpoint, Path: "/" + b + "/k"}, "")
	require.Equal(t, http.StatusForbidden, status)
	u, err := c.PresignedGetObject(t.Context(), b, "k", time.Minute, nil)
	require.NoError(t, err)
	status, body := fetch(http.MethodGet, u, "")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "secret", body)
	other := *u
	other.Path = "/" + b + "/other"
	status, _ = fetch(http.MethodGet, &other, "")
	require.Equal(t, http.StatusForbidden, status)
	status, _ = fetch(http.MethodPut, u, "changed")
	require.Equal(t, http.StatusForbidden, status)
	w, err := c.PresignedPutObject(t.Context(), b, "new", time.Minute)
	require.NoError(t, err)
	status, body = fetch(http.MethodPut, w, "by URL")
	require.Equal(t, http.StatusOK, status, body)
	got, _ := get(t, c, b, "new", minio.GetObjectOptions{})
	require.Equal(t, "by URL", string(got))
}

// Keys that no path can have are refused, with a sentence that says why.
func TestKeysThatAreNoPaths(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "bad-keys")
	long := strings.Repeat("n", 256)
	for _, key := range []string{"a//b", "/a", "a/./b", "a/../b", "..", ".", "../b", long, "d/" + long, ".moraine.uploads/x",
		strings.Repeat("k/", 513), "nul\x00"} {
		// The minio client corrects some keys by itself, so the URL is signed here.
		u, err := c.Presign(t.Context(), http.MethodPut, b, "placeholder", time.Minute, nil)
		require.NoError(t, err)
		status := rawPut(t, u, b, key)
		require.GreaterOrEqual(t, status, 400, "%q", key)
		require.Less(t, status, 500, "%q", key)
	}
	_, err := c.PutObject(t.Context(), b, "d/"+long, strings.NewReader("x"), 1, "", "", minio.PutObjectOptions{})
	require.Equal(t, "InvalidObjectName", code(err))
	put(t, c, b, "file", nil, minio.PutObjectOptions{})
	_, err = c.PutObject(t.Context(), b, "file/below", strings.NewReader("x"), 1, "", "", minio.PutObjectOptions{})
	require.Equal(t, "ObjectParentIsFile", code(err))
	put(t, c, b, "dir/k", nil, minio.PutObjectOptions{})
	_, err = c.PutObject(t.Context(), b, "dir", strings.NewReader("x"), 1, "", "", minio.PutObjectOptions{})
	require.Equal(t, "ExistingObjectIsDirectory", code(err))
}

// rawPut sends a PUT of a key that clients would not send.
func rawPut(t *testing.T, signed *url.URL, bucket, key string) int {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, signed.String(), strings.NewReader("x"))
	require.NoError(t, err)
	req.URL.Path = "/" + bucket + "/" + key
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	return resp.StatusCode
}

// Deleting removes the object, and the directories that were made for it, but no
// others.
func TestDelete(t *testing.T) {
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "delete")
	_, err := shared.client.Mkdir(ctx, "/"+b+"/made", 0)
	require.NoError(t, err)
	put(t, c, b, "a/b/c", nil, minio.PutObjectOptions{})
	put(t, c, b, "a/b/d", nil, minio.PutObjectOptions{})
	put(t, c, b, "made/x/y", nil, minio.PutObjectOptions{})
	require.NoError(t, c.RemoveObject(ctx, b, "a/b/c", minio.RemoveObjectOptions{}))
	require.NoError(t, c.RemoveObject(ctx, b, "a/b/c", minio.RemoveObjectOptions{}), "a missing object is no error")
	require.NoError(t, c.RemoveObject(ctx, b, "no/such/key", minio.RemoveObjectOptions{}))
	require.NoError(t, c.RemoveObject(ctx, b, "a", minio.RemoveObjectOptions{}), "a directory is no object")
	_, err = shared.client.Stat(ctx, "/"+b+"/a/b/d")
	require.NoError(t, err)
	require.NoError(t, c.RemoveObject(ctx, b, "a/b/d", minio.RemoveObjectOptions{}))
	_, err = shared.client.Stat(ctx, "/"+b+"/a")
	require.ErrorIs(t, err, moraine.NotFound)
	require.NoError(t, c.RemoveObject(ctx, b, "made/x/y", minio.RemoveObjectOptions{}))
	_, err = shared.client.Stat(ctx, "/"+b+"/made/x")
	require.ErrorIs(t, err, moraine.NotFound)
	_, err = shared.client.Stat(ctx, "/"+b+"/made")
	require.NoError(t, err)

	keys := make(chan minio.ObjectInfo, 20)
	for i := range cap(keys) {
		key := fmt.Sprintf("many/%d/k", i)
		put(t, c, b, key, nil, minio.PutObjectOptions{})
		keys <- minio.ObjectInfo{Key: key}
	}
	close(keys)
	for e := range c.RemoveObjects(ctx, b, keys, minio.RemoveObjectsOptions{}) {
		require.NoError(t, e.Err)
	}
	_, err = shared.client.Stat(ctx, "/"+b+"/many")
	require.ErrorIs(t, err, moraine.NotFound)
	require.Equal(t, "BucketNotEmpty", code(c.RemoveBucket(ctx, b)))
	require.NoError(t, shared.client.Remove(ctx, "/"+b+"/made"))
	require.NoError(t, c.RemoveBucket(ctx, b))
	ok, err := c.BucketExists(ctx, b)
	require.NoError(t, err)
	require.False(t, ok)
}

// A key that ends in a slash is a directory, with metadata of its own.
func TestDirectoryObjects(t *testing.T) {
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "directories")
	put(t, c, b, "d/e/", nil, minio.PutObjectOptions{UserMetadata: map[string]string{"Colour": "red"}})
	stat, err := c.StatObject(ctx, b, "d/e/", minio.StatObjectOptions{})
	require.NoError(t, err)
	require.Equal(t, "red", stat.UserMetadata["Colour"])
	require.Zero(t, stat.Size)
	require.Equal(t, []string{"d/e/"}, listAll(t, c, b, "", ""))
	put(t, c, b, "d/e/f", []byte("x"), minio.PutObjectOptions{})
	require.Equal(t, []string{"d/e/", "d/e/f"}, listAll(t, c, b, "", ""))
	_, err = c.StatObject(ctx, b, "d/", minio.StatObjectOptions{})
	require.Equal(t, "NoSuchKey", code(err), "nobody put it")
	require.NoError(t, c.RemoveObject(ctx, b, "d/e/", minio.RemoveObjectOptions{}))
	require.Equal(t, []string{"d/e/f"}, listAll(t, c, b, "", ""))
	require.NoError(t, c.RemoveObject(ctx, b, "d/e/f", minio.RemoveObjectOptions{}))
	require.NoError(t, c.RemoveBucket(ctx, b))
	_, err = c.PutObject(ctx, bucket(t, c, "directories"), "d/", strings.NewReader("x"), 1, "", "", minio.PutObjectOptions{})
	require.Equal(t, "DirectoryObjectContainsData", code(err))
}

// Tags are stored, replaced and removed.
func TestTags(t *testing.T) {
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "tags")
	put(t, c, b, "k", []byte("x"), minio.PutObjectOptions{UserTags: map[string]string{"a": "1"}, ContentType: "text/plain"})
	tagsOf := func() map[string]string {
		got, err := c.GetObjectTagging(ctx, b, "k", minio.GetObjectTaggingOptions{})
		require.NoError(t, err)
		return got.ToMap()
	}
	require.Equal(t, map[string]string{"a": "1"}, tagsOf())
	require.NoError(t, c.RemoveObjectTagging(ctx, b, "k", minio.RemoveObjectTaggingOptions{}))
	require.Empty(t, tagsOf())
	stat, err := c.StatObject(ctx, b, "k", minio.StatObjectOptions{})
	require.NoError(t, err)
	require.Equal(t, "text/plain", stat.ContentType)
}

// Buckets are the directories of the root.
func TestBuckets(t *testing.T) {
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "buckets")
	_, err := shared.client.Mkdir(ctx, "/Made_By_Hand", 0)
	require.NoError(t, err)
	all, err := c.ListBuckets(ctx)
	require.NoError(t, err)
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	require.Contains(t, names, b)
	require.Contains(t, names, "Made_By_Hand")
	require.Equal(t, "BucketAlreadyOwnedByYou", code(c.MakeBucket(ctx, b, minio.MakeBucketOptions{})))
	_, err = c.Client.PutObject(ctx, "never-made", "k", strings.NewReader("x"), 1, minio.PutObjectOptions{})
	require.Equal(t, "NoSuchBucket", code(err))
	_, err = shared.client.Stat(ctx, "/never-made")
	require.ErrorIs(t, err, moraine.NotFound)
	require.Equal(t, "NoSuchBucket", code(c.RemoveBucket(ctx, "never-made")))
}

// TestASmallPutIsOneRequest: a PUT of a small object with a type, metadata, tags and a checksum is one request
// that changes the state. So is one that replaces it.
func TestASmallPutIsOneRequest(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "small")
	data := bytesOf(1, 5000)
	sum := sumOf(data, minio.ChecksumSHA256)
	var mu sync.Mutex
	var met []string
	hook := func(req *wire.MetaRequest) {
		if o := ops.Of(req); o != nil && o.Effect == wire.Operation_COMMAND && o.Name != "keep" && o.Name != "release" { // of other tests' files
			mu.Lock()
			defer mu.Unlock()
			met = append(met, o.Name)
		}
	}
	shared.before.Store(&hook)
	t.Cleanup(func() { shared.before.Store(nil) })
	for range 2 {
		status, answer := putSummed(t, c, b, "k", data, minio.ChecksumSHA256, sum)
		require.Equal(t, 200, status, answer)
		put(t, c, b, "typed", data, minio.PutObjectOptions{ContentType: "text/plain", UserMetadata: map[string]string{"a": "b"}, UserTags: map[string]string{"x": "y"}})
		put(t, c, b, "empty", nil, minio.PutObjectOptions{ContentType: "text/plain"})
	}
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, slices.Repeat([]string{"commit"}, 6), met)
	info, err := c.StatObject(t.Context(), b, "k", minio.StatObjectOptions{Checksum: true})
	require.NoError(t, err)
	require.Equal(t, sum, info.ChecksumSHA256)
	got, of := get(t, c, b, "typed", minio.GetObjectOptions{})
	require.Equal(t, data, got)
	require.Equal(t, "text/plain", of.ContentType)
	require.Equal(t, "b", of.UserMetadata["A"])
}
