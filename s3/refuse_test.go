package s3_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/signer"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/s3"
	"github.com/morainefs/moraine/transport/wire"
)

// send makes a signed request that no client library would make.
func send(t *testing.T, method, target string, header http.Header, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+shared.endpoint+target, strings.NewReader(body))
	require.NoError(t, err)
	for name, values := range header {
		req.Header[name] = values
	}
	req.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	req = signer.SignV4(*req, accessKey, secretKey, "", s3.DefaultRegion)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

// A request for an unsupported feature is refused, and changes nothing.
func TestUnsupportedRequestsAreRefused(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "refused")
	data := []byte("bytes that stay")
	put(t, c, b, "k", data, minio.PutObjectOptions{})
	object, bad := "/"+b+"/k", func(header ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		return h
	}
	for _, r := range []struct {
		method, target string
		header         http.Header
	}{
		{"PUT", object + "?anything", nil},
		{"PUT", object + "?anything=1&x-id=PutObject", nil},
		{"PUT", object + "?torrent", nil},
		{"PUT", object + "?renameObject", bad("X-Amz-Rename-Source", object)},
		{"PUT", object + "?versionId=null", nil},
		{"PUT", object + "?acl", nil},
		{"PUT", object + "?retention", nil},
		{"PUT", object + "?legal-hold", nil},
		{"DELETE", object + "?anything", nil},
		{"DELETE", object + "?acl", nil},
		{"POST", object + "?anything", nil},
		{"POST", object + "?restore", nil},
		{"GET", object + "?torrent", nil},
		{"PUT", "/" + b + "?anything", nil},
		{"PUT", "/new-bucket?anything", nil},
		{"PUT", "/" + b + "?lifecycle", nil},
		{"PUT", "/" + b + "?encryption", nil},
		{"DELETE", "/" + b + "?anything", nil},
		{"DELETE", "/" + b + "?encryption", nil},
		{"POST", "/" + b + "?anything", nil},
		{"PUT", object, bad("X-Amz-Server-Side-Encryption", "AES256")},
		{"PUT", object, bad("X-Amz-Server-Side-Encryption", "aws:kms", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id", "key")},
		{"PUT", object, bad("X-Amz-Server-Side-Encryption-Customer-Algorithm", "AES256")},
		{"PUT", object + "?x-amz-server-side-encryption=AES256", nil},
		{"GET", object, bad("X-Amz-Server-Side-Encryption-Customer-Algorithm", "AES256")},
		{"PUT", object, bad("X-Amz-Copy-Source", object, "X-Amz-Copy-Source-Server-Side-Encryption-Customer-Algorithm", "AES256")},
		{"POST", object + "?uploads", bad("X-Amz-Server-Side-Encryption", "AES256")},
		{"PUT", object, bad("X-Amz-Write-Offset-Bytes", "4")},
		{"PUT", object, bad("X-Amz-Storage-Class", "GLACIER")},
		{"POST", object + "?uploads", bad("X-Amz-Storage-Class", "STANDARD_IA")},
		{"PUT", object, bad("X-Amz-Acl", "public-read")},
		{"PUT", object, bad("X-Amz-Grant-Read", "id=somebody")},
		{"PUT", object + "?tagging", bad("If-Match", "x")},
		{"PUT", object, bad("If-Unmodified-Since", "Thu, 01 Jan 1970 00:00:01 GMT")},
		{"DELETE", object, bad("If-Unmodified-Since", "Thu, 01 Jan 1970 00:00:01 GMT")},
		{"PUT", "/new-bucket", bad("X-Amz-Object-Ownership", "ObjectWriter")},
		{"PUT", "/new-bucket", bad("X-Amz-Object-Ownership", "BucketOwnerPreferred")},
		{"PUT", object + "/", bad("If-None-Match", "*")},
	} {
		t.Run(fmt.Sprint(r.method, " ", r.target, r.header), func(t *testing.T) {
			status, text := send(t, r.method, r.target, r.header, "")
			require.Equal(t, http.StatusNotImplemented, status, text)
			got, _ := get(t, c, b, "k", minio.GetObjectOptions{})
			require.Equal(t, string(data), string(got))
		})
	}
	status, text := send(t, "PUT", object, bad("X-Amz-Storage-Class", "STANDARD", "X-Amz-Acl", "private"), string(data))
	require.Equal(t, http.StatusOK, status, text)
	_, err := shared.client.Stat(t.Context(), "/new-bucket")
	require.ErrorIs(t, err, moraine.NotFound)
	require.NoError(t, c.RemoveObject(t.Context(), b, "k", minio.RemoveObjectOptions{}))
	require.NoError(t, c.RemoveBucket(t.Context(), b))
}

// The same holds for a form that a browser posts.
func TestFormsThatAskForMoreAreRefused(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "forms")
	now := time.Now().UTC()
	fields := map[string]string{"key": "k", "x-amz-algorithm": "AWS4-HMAC-SHA256", "x-amz-date": now.Format("20060102T150405Z"),
		"x-amz-credential": fmt.Sprintf("%s/%s/%s/s3/aws4_request", accessKey, now.Format("20060102"), s3.DefaultRegion), "x-amz-storage-class": "GLACIER"}
	conditions := []any{map[string]string{"bucket": b}}
	for name, value := range fields {
		conditions = append(conditions, map[string]string{name: value})
	}
	policy, err := json.Marshal(map[string]any{"expiration": now.Add(time.Minute).Format("2006-01-02T15:04:05.000Z"), "conditions": conditions})
	require.NoError(t, err)
	fields["policy"] = base64.StdEncoding.EncodeToString(policy)
	fields["x-amz-signature"] = signer.PostPresignSignatureV4(fields["policy"], now, secretKey, s3.DefaultRegion)
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	for name, value := range fields {
		require.NoError(t, w.WriteField(name, value))
	}
	part, err := w.CreateFormFile("file", "k")
	require.NoError(t, err)
	_, err = part.Write([]byte("bytes"))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	resp, err := http.Post("http://"+shared.endpoint+"/"+b, w.FormDataContentType(), &form)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusNotImplemented, resp.StatusCode, string(text))
	require.NoError(t, c.RemoveBucket(t.Context(), b))
}

// A path with a bad escape is a client error.
func TestBadEscapes(t *testing.T) {
	req := "PUT /%zz HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
	conn, err := net.Dial("tcp", shared.endpoint)
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte(req))
	require.NoError(t, err)
	answer := make([]byte, 12)
	_, err = io.ReadFull(conn, answer)
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 400", string(answer))
}

// A failed PUT leaves no directories, so that its bucket can be removed. Nor does a
// PUT that never ended prevent the removal.
func TestFailedPutsLeaveNoDirectories(t *testing.T) {
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "failed-puts")
	status, text := putSummed(t, c, b, "a/b/c", []byte("bytes"), minio.ChecksumCRC32C, sumOf([]byte("others"), minio.ChecksumCRC32C))
	require.Equal(t, http.StatusBadRequest, status, text)
	_, err := shared.client.Stat(ctx, "/"+b+"/a")
	require.ErrorIs(t, err, moraine.NotFound)

	parent, err := shared.client.Stat(ctx, "/"+b)
	require.NoError(t, err)
	for _, name := range []string{"cut", "short"} { // as the endpoint makes them
		parent, err = shared.client.Inodes().Mkdir(ctx, parent.Inode(), name, client.NodeOptions{Mode: 0o755, Exclusive: true,
			Xattrs: map[string][]byte{"user.moraine.s3": []byte(`{"version":1,"directory":"implied"}`)}})
		require.NoError(t, err)
	}
	require.NoError(t, c.RemoveBucket(ctx, b))
}

// A client that puts an object never gets NotFound while others delete the last
// other keys of its directories.
func TestPutsUnderDeletes(t *testing.T) {
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "under-deletes")
	put(t, c, b, "source", []byte("bytes of the source"), minio.PutObjectOptions{})
	remove := func(key string) error { return c.RemoveObject(ctx, b, key, minio.RemoveObjectOptions{}) }
	ways := map[string]func(key string) error{
		"put": func(key string) error {
			_, err := c.Client.PutObject(ctx, b, key, strings.NewReader("bytes"), 5, minio.PutObjectOptions{DisableMultipart: true})
			return err
		},
		"copy": func(key string) error {
			_, err := c.Client.CopyObject(ctx, minio.CopyDestOptions{Bucket: b, Object: key}, minio.CopySrcOptions{Bucket: b, Object: "source"})
			return err
		},
		"complete": func(key string) error {
			id, err := c.NewMultipartUpload(ctx, b, key, minio.PutObjectOptions{})
			if err != nil {
				return err
			}
			p, err := c.PutObjectPart(ctx, b, key, id, 1, strings.NewReader("bytes"), 5, minio.PutObjectPartOptions{})
			if err != nil {
				return err
			}
			_, err = c.CompleteMultipartUpload(ctx, b, key, id, []minio.CompletePart{{PartNumber: 1, ETag: p.ETag}}, minio.PutObjectOptions{})
			return err
		},
		"directory": func(key string) error {
			_, err := c.PutObject(ctx, b, key+"/", strings.NewReader(""), 0, "", "", minio.PutObjectOptions{})
			if err != nil {
				return err
			}
			return remove(key + "/")
		},
	}
	const rounds = 25
	var wg sync.WaitGroup
	for name, way := range ways {
		for i := range 2 {
			wg.Go(func() {
				for round := range rounds {
					key := fmt.Sprintf("p/q/%s-%d", name, i)
					if err := way(key); err != nil {
						t.Errorf("round %d of %s: %v", round, name, err)
						return
					}
					if err := remove(key); err != nil {
						t.Errorf("round %d of %s: delete: %v", round, name, err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	require.NoError(t, remove("source"))
	require.NoError(t, c.RemoveBucket(ctx, b), "nothing is left")
}

// The directory of a key is removed between the PUT's check and its commit.
func TestPutWhoseDirectoryGoes(t *testing.T) {
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "directory-goes")
	put(t, c, b, "d/other", []byte("x"), minio.PutObjectOptions{})
	put(t, c, b, "source", []byte("bytes"), minio.PutObjectOptions{})
	gone := func() { require.NoError(t, c.RemoveObject(ctx, b, "d/other", minio.RemoveObjectOptions{})) }
	named := func(req *wire.MetaRequest) bool {
		return req.GetCommit().GetLink() != nil || req.GetClone().GetLink() != nil || req.GetConcat() != nil
	}
	ran := atFirst(t, named, gone)
	put(t, c, b, "d/k", []byte("bytes"), minio.PutObjectOptions{})
	require.True(t, ran())
	got, _ := get(t, c, b, "d/k", minio.GetObjectOptions{})
	require.Equal(t, "bytes", string(got))

	shared.before.Store(nil)
	require.NoError(t, c.RemoveObject(ctx, b, "d/k", minio.RemoveObjectOptions{}))
	put(t, c, b, "d/other", []byte("x"), minio.PutObjectOptions{})
	ran = atFirst(t, named, gone)
	_, err := c.Client.CopyObject(ctx, minio.CopyDestOptions{Bucket: b, Object: "d/k"}, minio.CopySrcOptions{Bucket: b, Object: "source"})
	require.NoError(t, err)
	require.True(t, ran())
}

// A condition holds at the moment of the commit: an object put between the check
// and the commit is not lost.
func TestConditionsAreOfTheCommit(t *testing.T) {
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "of-the-commit")
	named := func(req *wire.MetaRequest) bool {
		return req.GetCommit().GetLink() != nil || req.GetClone().GetLink() != nil || req.GetConcat() != nil || req.GetRemove() != nil
	}
	put(t, c, b, "source", []byte("of the source"), minio.PutObjectOptions{})
	ifMatch := func(tag string) http.Header { return http.Header{"If-Match": {tag}} }
	for name, way := range map[string]func(key, tag string) (int, string){
		"put":    func(key, tag string) (int, string) { return send(t, "PUT", "/"+b+"/"+key, ifMatch(tag), "mine") },
		"delete": func(key, tag string) (int, string) { return send(t, "DELETE", "/"+b+"/"+key, ifMatch(tag), "") },
		"copy": func(key, tag string) (int, string) {
			return send(t, "PUT", "/"+b+"/"+key, http.Header{"If-Match": {tag}, "X-Amz-Copy-Source": {"/" + b + "/source"}}, "")
		},
		"complete": func(key, tag string) (int, string) {
			id, err := c.NewMultipartUpload(ctx, b, key, minio.PutObjectOptions{})
			require.NoError(t, err)
			shared.before.Store(nil)
			p, err := c.PutObjectPart(ctx, b, key, id, 1, strings.NewReader("mine"), 4, minio.PutObjectPartOptions{})
			require.NoError(t, err)
			ran := atFirst(t, named, func() { put(t, c, b, key, []byte("theirs"), minio.PutObjectOptions{}) })
			status, text := send(t, "POST", "/"+b+"/"+key+"?uploadId="+id, ifMatch(tag), fmt.Sprintf(
				"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part></CompleteMultipartUpload>", p.ETag))
			require.True(t, ran())
			return status, text
		},
	} {
		t.Run(name, func(t *testing.T) {
			key := "k-" + name
			info := put(t, c, b, key, []byte("first"), minio.PutObjectOptions{})
			ran := atFirst(t, named, func() { put(t, c, b, key, []byte("theirs"), minio.PutObjectOptions{}) })
			status, text := way(key, `"`+info.ETag+`"`)
			require.True(t, ran() || name == "complete")
			require.Equal(t, http.StatusPreconditionFailed, status, text)
			shared.before.Store(nil)
			got, now := get(t, c, b, key, minio.GetObjectOptions{})
			require.Equal(t, "theirs", string(got))

			status, text = way(key, `"`+now.ETag+`"`) // apart from the hook of a completion, no other client is active now
			if name != "complete" {
				require.Less(t, status, 300, text)
			}
			shared.before.Store(nil)
		})
	}
	status, text := send(t, "PUT", "/"+b+"/k-put", ifMatch("*"), "whatever was there")
	require.Equal(t, http.StatusOK, status, text)
	status, text = send(t, "PUT", "/"+b+"/none", ifMatch("*"), "nothing is there")
	require.Equal(t, http.StatusNotFound, status, text)
}

// The deletion of a key does not prune its directory if that was put as an object,
// even if it was made for the key.
func TestPutDirectoryIsNotPruned(t *testing.T) {
	ctx := t.Context()
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "not-pruned")
	put(t, c, b, "d/k", []byte("x"), minio.PutObjectOptions{})
	ran := atFirst(t, func(req *wire.MetaRequest) bool { return req.GetRemove().GetDirectory() }, func() {
		put(t, c, b, "d/", nil, minio.PutObjectOptions{})
	})
	require.NoError(t, c.RemoveObject(ctx, b, "d/k", minio.RemoveObjectOptions{}))
	require.True(t, ran())
	shared.before.Store(nil)
	_, err := c.StatObject(ctx, b, "d/", minio.StatObjectOptions{})
	require.NoError(t, err)
}
