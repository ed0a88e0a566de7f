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
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/leakcheck"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/s3"
)

// s3Request is one request of an S3 client.
type s3Request struct {
	name string
	// ops are the operations of the backend that it uses.
	ops    []string
	method string
	key    string // "": of the bucket
	query  string
	header map[string]string
	body   string
	want   int
	// heavy moves more than a few hundred kilobytes: the short form runs it less
	// often.
	heavy bool
}

const (
	// leakBody is longer than the sockets' buffers.
	leakBody = 8 << 20
	// leakWhole is the most of a body that is sent completely: requests that end in
	// the middle of a body send more.
	leakWhole = 20_000
)

func leakRequests(bucket, upload string, big string) []s3Request {
	md := func(body string) map[string]string {
		sum := md5.Sum([]byte(body))
		return map[string]string{"Content-Md5": base64.StdEncoding.EncodeToString(sum[:])}
	}
	from := map[string]string{"X-Amz-Copy-Source": "/" + bucket + "/small"}
	nothing := map[string]string{"X-Amz-Copy-Source": "/" + bucket + "/nothing"}
	deletes := `<Delete><Object><Key>none</Key></Object></Delete>`
	complete := `<CompleteMultipartUpload><Part><PartNumber>7</PartNumber><ETag>"x"</ETag></Part></CompleteMultipartUpload>`
	tags := `<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>`
	return []s3Request{
		{name: "put", ops: []string{"PutObject"}, method: "PUT", key: "put", body: big, want: 200},
		{name: "put of nothing", ops: []string{"PutObject"}, method: "PUT", key: "empty", want: 200},
		{name: "put of wrong bytes", ops: []string{"PutObject"}, method: "PUT", key: "wrong", body: "other", header: md("bytes"), want: 400},
		{name: "get", ops: []string{"GetObject"}, method: "GET", key: "big", want: 200, heavy: true},
		{name: "get of a small object", ops: []string{"GetObject"}, method: "GET", key: "small", want: 200},
		{name: "get of nothing", ops: []string{"GetObject"}, method: "GET", key: "none", want: 404},
		{name: "get of no bytes", ops: []string{"GetObject"}, method: "GET", key: "empty", want: 200},
		{name: "get past the end", ops: []string{"GetObject"}, method: "GET", key: "big", header: map[string]string{"Range": "bytes=900000000-"}, want: 416},
		{name: "get past the end of nothing", ops: []string{"GetObject"}, method: "GET", key: "empty", header: map[string]string{"Range": "bytes=0-"}, want: 416},
		{name: "get over the end", ops: []string{"GetObject"}, method: "GET", key: "small", header: map[string]string{"Range": "bytes=100-900000000"}, want: 206},
		{name: "get of a range", ops: []string{"GetObject"}, method: "GET", key: "big", header: map[string]string{"Range": "bytes=100-8000000"}, want: 206, heavy: true},
		{name: "head", ops: []string{"HeadObject"}, method: "HEAD", key: "big", want: 200},
		{name: "head of nothing", ops: []string{"HeadObject"}, method: "HEAD", key: "none", want: 404},
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

// The table has each operation of the backend, so that a new one is always covered.
func TestTheLeakTableHasEveryOperation(t *testing.T) {
	ops := s3.Operations()
	require.Greater(t, len(ops), 25, ops)
	for _, op := range ops {
		switch op {
		case "String", // not a request
			"ListBuckets", "ListBucketsAndOwners": // without a bucket: TestNoS3RequestKeepsAnything makes it separately
			continue
		}
		if !slices.ContainsFunc(leakRequests("b", "u", ""), func(r s3Request) bool { return slices.Contains(r.ops, op) }) {
			t.Errorf("leakRequests has no request for %s", op)
		}
	}
}

// No S3 request keeps memory, descriptors or goroutines, whether it is answered, is
// refused, fails with the cluster, or its client disconnects: in the middle of the
// body, in the middle of the answer, or before the answer begins.
func TestNoS3RequestKeepsAnything(t *testing.T) {
	e := newS3Leaks(t)
	for _, r := range e.requests {
		for outcome, end := range e.ends(&r) {
			t.Run(r.name+"/"+outcome, func(t *testing.T) {
				e.t = t
				n := testseed.Runs(t, 20, 10_000)
				if r.heavy {
					n = testseed.Runs(t, 8, 10_000)
				}
				end(&r)
				before, began := keptByS3(), time.Now()
				for range n {
					end(&r)
				}
				requireNothingKept(t, before, n)
				t.Logf("%d requests took %v", n, time.Since(began).Round(time.Millisecond))
			})
		}
	}
	_, err := e.c.ListBuckets(t.Context())
	require.NoError(t, err)
}

func requireNothingKept(t *testing.T, before s3Kept, n int) {
	t.Helper()
	const slack = 4 // started in the background, and stays
	var now s3Kept
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		now = keptByS3()
		if now.memory == 0 && now.Descriptors <= before.Descriptors+slack && now.Count() <= before.Count()+slack && now.raft <= raftConnections && now.polls <= jobPolls {
			return
		}
	}
	t.Fatalf("%d requests keep something: before and after %d and %d bytes, %d and %d descriptors, %d and %d goroutines, and %d for connections of raft:\n%s", n,
		before.memory, now.memory, before.Descriptors, now.Descriptors, before.Count(), now.Count(), now.raft, now.Grown(before.Kept))
}

type s3Kept struct {
	memory int64
	raft   int // goroutines that serve connections of raft; Kept has neither these nor the next
	polls  int // requests of movers that wait for a job: now and then there is none
	leakcheck.Kept
}

// idle are the goroutines that the HTTP library keeps for the next connections: one
// ends ten seconds after its last.
var idle = []string{"fasthttp.(*workerPool).workerFunc", "!fasthttp.(*Server)."}

// raftConnections bounds the connections between the three metadata servers: each keeps four
// to each of the others, and one more for entries. A change of leader makes some.
const raftConnections = 3 * 2 * (4 + 1)

// jobPolls bounds the requests of the movers of three hosts that wait for a job at once. A mover
// makes one for each lane (repairs, balance, commits), and makes it again at another server if the leader
// changes meanwhile.
const jobPolls = 3 * 3 * 2

func keptByS3() s3Kept {
	k := s3Kept{memory: shared.client.MemoryInUse(), Kept: leakcheck.Now(idle)}
	k.raft = k.Take("raft.(*NetworkTransport).handleConn")
	k.polls = k.Take("metadata.(*jobDesk).leaseJobs")
	return k
}

type s3Leaks struct {
	t        *testing.T
	c        *minio.Core
	bucket   string
	requests []s3Request
	cuts     int
}

func newS3Leaks(t *testing.T) *s3Leaks {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "leaks")
	big := bytesOf(seed(t), leakBody)
	put(t, c, b, "big", big, putOptions("")) // a reply is cut in the middle
	put(t, c, b, "small", big[:leakWhole], putOptions(""))
	put(t, c, b, "empty", nil, putOptions(""))
	upload, err := c.NewMultipartUpload(t.Context(), b, "upload", minio.PutObjectOptions{})
	require.NoError(t, err)
	return &s3Leaks{t: t, c: c, bucket: b, requests: leakRequests(b, upload, string(big[:leakBody/4]))}
}

// ends are the ways in which a request ends.
func (e *s3Leaks) ends(r *s3Request) map[string]func(*s3Request) {
	ends := map[string]func(*s3Request){"answer": e.answer, "refusal": e.refuse, "error": e.fail, "cut": e.cut, "gone": e.leave}
	if len(r.ops) == 0 { // it sends no request to the cluster
		delete(ends, "error")
	}
	return ends
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

// whole returns a request whose body is sent completely.
func (r s3Request) whole() *s3Request {
	r.body = r.body[:min(len(r.body), leakWhole)]
	return &r
}

func (e *s3Leaks) answer(r *s3Request) {
	status := e.send(e.request(r.whole()))
	if r.want != 0 {
		require.Equal(e.t, r.want, status)
	}
}

// refuse sends it with a wrong signature.
func (e *s3Leaks) refuse(r *s3Request) {
	req := e.request(r.whole())
	q := req.URL.Query()
	q.Set("X-Amz-Signature", strings.Repeat("0", 64))
	req.URL.RawQuery = q.Encode()
	require.Equal(e.t, http.StatusForbidden, e.send(req))
}

// fail sends it while each request of the endpoint to the cluster fails.
func (e *s3Leaks) fail(r *s3Request) {
	shared.failing.Store(true)
	defer shared.failing.Store(false)
	require.GreaterOrEqual(e.t, e.send(e.request(r.whole())), 300)
}

// cut closes the connection in the middle of the body that it sends or receives.
func (e *s3Leaks) cut(r *s3Request) {
	switch e.cuts++; {
	case len(r.body) > leakWhole && e.cuts%10 > 0:
		e.part(r, leakWhole, false) // put the stripes of some only, or the devices would be full
		return
	case r.body != "":
		e.part(r, len(r.body)/2, false)
		return
	}
	e.part(r, 0, true)
}

// leave closes the connection when everything is sent.
func (e *s3Leaks) leave(r *s3Request) {
	r = r.whole()
	e.part(r, len(r.body), false)
}

// part sends a request with the given bytes of its body, and closes the connection.
// If answer is set, it first waits until the answer begins.
func (e *s3Leaks) part(r *s3Request, sent int, answer bool) {
	nc, err := net.Dial("tcp", shared.endpoint)
	require.NoError(e.t, err)
	defer nc.Close() //nolint:errcheck // a failed close loses nothing
	var head bytes.Buffer
	req := e.request(r)
	fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n", r.method, req.URL.RequestURI(), req.URL.Host, len(r.body))
	require.NoError(e.t, req.Header.Write(&head))
	head.WriteString("\r\n" + r.body[:sent])
	_, err = nc.Write(head.Bytes())
	if answer {
		require.NoError(e.t, err)
		_, _ = bufio.NewReaderSize(nc, 4096).ReadByte() // it has begun to answer
	}
}
