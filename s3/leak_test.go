package s3_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/md5"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/s3"
)

// s3Request is one request of an S3 client.
type s3Request struct {
	name string
	// ops are the operations of the backend that it takes.
	ops    []string
	method string
	key    string // "": of the bucket
	query  string
	header map[string]string
	body   string
	want   int
}

// leakBody is longer than what sockets hold.
const leakBody = 12 << 20

func leakRequests(bucket, upload string, big string) []s3Request {
	md := func(body string) map[string]string {
		sum := md5.Sum([]byte(body))
		return map[string]string{"Content-Md5": base64.StdEncoding.EncodeToString(sum[:])}
	}
	from := map[string]string{"X-Amz-Copy-Source": "/" + bucket + "/big"}
	nothing := map[string]string{"X-Amz-Copy-Source": "/" + bucket + "/nothing"}
	deletes := `<Delete><Object><Key>none</Key></Object></Delete>`
	complete := `<CompleteMultipartUpload><Part><PartNumber>7</PartNumber><ETag>"x"</ETag></Part></CompleteMultipartUpload>`
	tags := `<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>`
	return []s3Request{
		{name: "put", ops: []string{"PutObject"}, method: "PUT", key: "put", body: big, want: 200},
		{name: "put of nothing", ops: []string{"PutObject"}, method: "PUT", key: "empty", want: 200},
		{name: "put of wrong bytes", ops: []string{"PutObject"}, method: "PUT", key: "wrong", body: "other", header: md("bytes"), want: 400},
		{name: "get", ops: []string{"GetObject"}, method: "GET", key: "big", want: 200},
		{name: "get of nothing", ops: []string{"GetObject"}, method: "GET", key: "none", want: 404},
		{name: "get of no bytes", ops: []string{"GetObject"}, method: "GET", key: "empty", want: 200},
		{name: "get past the end", ops: []string{"GetObject"}, method: "GET", key: "big", header: map[string]string{"Range": "bytes=900000000-"}, want: 416},
		{name: "get of a range", ops: []string{"GetObject"}, method: "GET", key: "big", header: map[string]string{"Range": "bytes=100-8000000"}, want: 206},
		{name: "head", ops: []string{"HeadObject"}, method: "HEAD", key: "big", want: 200},
		{name: "attributes", ops: []string{"GetObjectAttributes"}, method: "GET", key: "big", query: "attributes",
			header: map[string]string{"X-Amz-Object-Attributes": "ETag,ObjectSize"}, want: 200},
		{name: "copy", ops: []string{"CopyObject"}, method: "PUT", key: "copy", header: from, want: 200},
		{name: "copy of nothing", ops: []string{"CopyObject"}, method: "PUT", key: "copy", header: nothing, want: 404},
		{name: "delete", ops: []string{"DeleteObject"}, method: "DELETE", key: "none", want: 204},
		{name: "deletes", ops: []string{"DeleteObjects"}, method: "POST", query: "delete", body: deletes, header: md(deletes), want: 200},
		{name: "list", ops: []string{"ListObjects"}, method: "GET", want: 200},
		{name: "list again", ops: []string{"ListObjectsV2"}, method: "GET", query: "list-type=2", want: 200},
		{name: "tag", ops: []string{"PutObjectTagging"}, method: "PUT", key: "big", query: "tagging", body: tags, header: md(tags), want: 200},
		{name: "tags", ops: []string{"GetObjectTagging"}, method: "GET", key: "big", query: "tagging", want: 200},
		{name: "untag", ops: []string{"DeleteObjectTagging"}, method: "DELETE", key: "big", query: "tagging", want: 204},
		{name: "part", ops: []string{"UploadPart"}, method: "PUT", key: "upload", query: "partNumber=1&uploadId=" + upload, body: big, want: 200},
		{name: "part of no upload", ops: []string{"UploadPart"}, method: "PUT", key: "upload", query: "partNumber=1&uploadId=none", body: "x", want: 404},
		{name: "part by copy", ops: []string{"UploadPartCopy"}, method: "PUT", key: "upload", query: "partNumber=2&uploadId=" + upload, header: from, want: 200},
		{name: "parts", ops: []string{"ListParts"}, method: "GET", key: "upload", query: "uploadId=" + upload, want: 200},
		{name: "uploads", ops: []string{"ListMultipartUploads"}, method: "GET", query: "uploads", want: 200},
		{name: "complete of wrong parts", ops: []string{"CompleteMultipartUpload"}, method: "POST", key: "upload", query: "uploadId=" + upload, body: complete, want: 400},
		{name: "abort of no upload", ops: []string{"AbortMultipartUpload"}, method: "DELETE", key: "upload", query: "uploadId=none", want: 404},
		{name: "begin", ops: []string{"CreateMultipartUpload"}, method: "POST", key: "begun", query: "uploads", want: 200},
		{name: "head of the bucket", ops: []string{"HeadBucket", "GetBucketAcl", "GetBucketPolicy"}, method: "HEAD", want: 200},
		{name: "delete of the bucket", ops: []string{"DeleteBucket"}, method: "DELETE", want: 409},
		{name: "make the bucket", ops: []string{"CreateBucket"}, method: "PUT", want: 409},
		{name: "acl", ops: []string{"GetBucketAcl"}, method: "GET", query: "acl", want: 200},
		{name: "versioning", ops: []string{"GetBucketVersioning"}, method: "GET", query: "versioning", want: 200},
		{name: "policy", ops: []string{"GetBucketPolicy"}, method: "GET", query: "policy"},
		{name: "cors", ops: []string{"GetBucketCors"}, method: "GET", query: "cors"},
		{name: "ownership", ops: []string{"GetBucketOwnershipControls"}, method: "GET", query: "ownershipControls"},
		{name: "lock", ops: []string{"GetObjectLockConfiguration"}, method: "GET", query: "object-lock"},
		{name: "tags of the bucket", ops: []string{"GetBucketTagging"}, method: "GET", query: "tagging"},
		{name: "a subresource that is not served", method: "GET", query: "replication"},
	}
}

// The table has each operation of the backend, so that a new one cannot be forgotten.
func TestTheLeakTableHasEveryOperation(t *testing.T) {
	ops := s3.Operations()
	require.Greater(t, len(ops), 25, ops)
	for _, op := range ops {
		switch op {
		case "String", // no request
			"ListBuckets", "ListBucketsAndOwners": // of no bucket: TestNoS3RequestKeepsAnything makes it apart
			continue
		}
		if !slices.ContainsFunc(leakRequests("b", "u", ""), func(r s3Request) bool { return slices.Contains(r.ops, op) }) {
			t.Errorf("leakRequests has no request for %s", op)
		}
	}
}

// No S3 request keeps memory, descriptors or goroutines, whether it is answered, refused,
// or its connection is cut in the middle of the transfer.
func TestNoS3RequestKeepsAnything(t *testing.T) {
	const slack = 4 // what comes by itself, and stays
	times, few := testseed.Runs(t, slack+2, 1000), testseed.Runs(t, 1, 100)
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "leaks")
	big := bytesOf(seed(t), leakBody)
	put(t, c, b, "big", big, putOptions("")) // a reply is cut in the middle
	big = big[:leakBody/4]
	put(t, c, b, "empty", nil, putOptions(""))
	upload, err := c.NewMultipartUpload(t.Context(), b, "upload", minio.PutObjectOptions{})
	require.NoError(t, err)
	e := &s3Leaks{t: t, c: c, bucket: b}
	for _, r := range leakRequests(b, upload, string(big)) {
		for outcome, end := range map[string]func(*s3Request){"answer": e.answer, "refusal": e.refuse, "cut": e.cut} {
			t.Run(r.name+"/"+outcome, func(t *testing.T) {
				e.t = t
				n := times
				if len(r.body) > 1<<20 && outcome != "cut" {
					n = few
				}
				end(&r)
				before := keptByS3()
				for range n {
					end(&r)
				}
				var now s3Kept
				for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
					now = keptByS3()
					if now.Memory == 0 && now.Descriptors <= before.Descriptors+slack && now.Goroutines <= before.Goroutines+slack {
						return
					}
				}
				t.Fatalf("%d requests keep something: before %+v, after %+v", n, before, now)
			})
		}
	}
	_, err = c.ListBuckets(t.Context())
	require.NoError(t, err)
}

type s3Kept struct {
	Memory                  int64
	Descriptors, Goroutines int
}

func keptByS3() s3Kept {
	k := s3Kept{Memory: shared.client.MemoryInUse(), Goroutines: runtime.NumGoroutine()}
	if names, err := os.ReadDir("/proc/self/fd"); err == nil {
		k.Descriptors = len(names)
	}
	return k
}

type s3Leaks struct {
	t      *testing.T
	c      *minio.Core
	bucket string
}

// request signs a request.
func (e *s3Leaks) request(r *s3Request) *http.Request {
	query, err := url.ParseQuery(r.query)
	require.NoError(e.t, err)
	header := http.Header{}
	for k, v := range r.header {
		header.Set(k, v)
	}
	u, err := e.c.PresignHeader(e.t.Context(), r.method, e.bucket, r.key, time.Hour, query, header)
	require.NoError(e.t, err)
	req, err := http.NewRequestWithContext(context.Background(), r.method, u.String(), strings.NewReader(r.body))
	require.NoError(e.t, err)
	req.Header = header
	req.Close = true
	return req
}

func (e *s3Leaks) send(req *http.Request) int {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	require.NoError(e.t, err)
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(e.t, err)
	return resp.StatusCode
}

func (e *s3Leaks) answer(r *s3Request) {
	status := e.send(e.request(r))
	if r.want != 0 {
		require.Equal(e.t, r.want, status)
	}
}

// refuse sends it with a signature that is wrong.
func (e *s3Leaks) refuse(r *s3Request) {
	if len(r.body) > 1<<20 { // the endpoint answers before it has read that
		r = &s3Request{method: r.method, key: r.key, query: r.query, header: r.header, body: r.body[:1000]}
	}
	req := e.request(r)
	q := req.URL.Query()
	q.Set("X-Amz-Signature", strings.Repeat("0", 64))
	req.URL.RawQuery = q.Encode()
	require.Equal(e.t, http.StatusForbidden, e.send(req))
}

// cut closes the connection in the middle of the body that it sends or gets.
func (e *s3Leaks) cut(r *s3Request) {
	nc, err := net.Dial("tcp", shared.endpoint)
	require.NoError(e.t, err)
	defer nc.Close() //nolint:errcheck // nothing is owed on it
	var head bytes.Buffer
	req := e.request(r)
	fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n", r.method, req.URL.RequestURI(), req.URL.Host, len(r.body))
	require.NoError(e.t, req.Header.Write(&head))
	head.WriteString("\r\n")
	if r.body != "" {
		_, _ = nc.Write(append(head.Bytes(), r.body[:len(r.body)/2]...))
		return
	}
	_, err = nc.Write(head.Bytes())
	require.NoError(e.t, err)
	_, _ = bufio.NewReaderSize(nc, 4096).ReadByte() // it has begun to answer
}
