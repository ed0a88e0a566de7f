package s3_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/signer"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/s3"
)

// secret is in the names that intruders try, beside the directory that the endpoint
// serves. untold is in a name and in the bytes there, and secretSize is the length
// of the files.
const (
	secret     = "sekrit"
	untold     = "untold"
	secretSize = 700_001
)

// answer is an intruder's answer.
type answer struct {
	status int
	text   string // headers included
}

func exchange(t *testing.T, req *http.Request) answer {
	t.Helper()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		require.NoError(t, err)
	}
	var head strings.Builder
	require.NoError(t, resp.Header.Write(&head))
	return answer{resp.StatusCode, head.String() + string(body)}
}

// request makes an unsigned request whose path and query are sent unchanged.
func (r *s3Request) request(t *testing.T, target string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), r.method, "http://"+shared.endpoint+"/", strings.NewReader(r.body))
	require.NoError(t, err)
	path, query, _ := strings.Cut(target, "?")
	plain, err := url.PathUnescape(path)
	require.NoError(t, err)
	req.URL.Path, req.URL.RawPath, req.URL.RawQuery = plain, path, query
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	return req
}

// signed signs a request in its headers.
func signed(req *http.Request, access, secretKey, region string) *http.Request {
	req.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	return signer.SignV4(*req, access, secretKey, "", region)
}

// presigned signs a request in its URL, for an hour that began the given time ago.
func presigned(req *http.Request, access, secretKey string, expires int64) *http.Request {
	return signer.PreSignV4(*req, access, secretKey, "", s3.DefaultRegion, expires)
}

// badCredentials are the attempts of a caller without the root key.
var badCredentials = map[string]func(*http.Request) *http.Request{
	"none": func(r *http.Request) *http.Request { return r },
	"a wrong secret": func(r *http.Request) *http.Request {
		return signed(r, accessKey, "wrong"+secretKey, s3.DefaultRegion)
	},
	"an empty secret": func(r *http.Request) *http.Request { return signed(r, accessKey, " ", s3.DefaultRegion) },
	"an unknown key":  func(r *http.Request) *http.Request { return signed(r, "nobody", secretKey, s3.DefaultRegion) },
	"another region":  func(r *http.Request) *http.Request { return signed(r, accessKey, secretKey, "mars") },
	"a signature of version 2": func(r *http.Request) *http.Request {
		return signer.SignV2(*r, accessKey, secretKey, false)
	},
	"an old date": func(r *http.Request) *http.Request {
		r = signed(r, accessKey, secretKey, s3.DefaultRegion)
		r.Header.Set("X-Amz-Date", time.Now().Add(-time.Hour).UTC().Format("20060102T150405Z"))
		return r
	},
	"another method": func(r *http.Request) *http.Request {
		method := r.Method
		r.Method = http.MethodOptions
		r = signed(r, accessKey, secretKey, s3.DefaultRegion)
		r.Method = method
		return r
	},
	"another path": func(r *http.Request) *http.Request {
		path, raw := r.URL.Path, r.URL.RawPath
		r.URL.Path, r.URL.RawPath = "/another/path", ""
		r = signed(r, accessKey, secretKey, s3.DefaultRegion)
		r.URL.Path, r.URL.RawPath = path, raw
		return r
	},
	"an argument more": func(r *http.Request) *http.Request {
		r = signed(r, accessKey, secretKey, s3.DefaultRegion)
		r.URL.RawQuery = strings.TrimPrefix(r.URL.RawQuery+"&x-id=1", "&")
		return r
	},
	"a header more": func(r *http.Request) *http.Request {
		r = signed(r, accessKey, secretKey, s3.DefaultRegion)
		r.Header.Set("X-Amz-Meta-More", "x")
		return r
	},
	"a URL of a wrong secret": func(r *http.Request) *http.Request { return presigned(r, accessKey, "wrong", 3600) },
	"a URL that has expired": func(r *http.Request) *http.Request {
		r = presigned(r, accessKey, secretKey, 1)
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(2100 * time.Millisecond)))
		return r
	},
	"a URL made to last": func(r *http.Request) *http.Request {
		r = presigned(r, accessKey, secretKey, 3600)
		r.URL.RawQuery = strings.Replace(r.URL.RawQuery, "X-Amz-Expires=3600", "X-Amz-Expires=360000", 1)
		return r
	},
	"a URL for another key": func(r *http.Request) *http.Request {
		path, raw := r.URL.Path, r.URL.RawPath
		r.URL.Path, r.URL.RawPath = "/another/path", ""
		r = presigned(r, accessKey, secretKey, 3600)
		r.URL.Path, r.URL.RawPath = path, raw
		return r
	},
	"another host": func(r *http.Request) *http.Request {
		return elsewhere(r, func(r *http.Request) *http.Request { return signed(r, accessKey, secretKey, s3.DefaultRegion) })
	},
	"a URL for another host": func(r *http.Request) *http.Request {
		return elsewhere(r, func(r *http.Request) *http.Request { return presigned(r, accessKey, secretKey, 3600) })
	},
	"a URL for another method": func(r *http.Request) *http.Request {
		method := r.Method
		if r.Method = http.MethodGet; method == http.MethodGet {
			r.Method = http.MethodPut
		}
		r = presigned(r, accessKey, secretKey, 3600)
		r.Method = method
		return r
	},
	"a URL with a copy put in": func(r *http.Request) *http.Request {
		source := r.Header.Get("X-Amz-Copy-Source")
		r.Header.Del("X-Amz-Copy-Source")
		r = presigned(r, accessKey, secretKey, 3600)
		if source == "" {
			source = "/guarded/big"
		}
		r.Header.Set("X-Amz-Copy-Source", source)
		return r
	},
}

// elsewhere signs a request for another endpoint than the one that receives it.
func elsewhere(r *http.Request, sign func(*http.Request) *http.Request) *http.Request {
	host := r.URL.Host
	r.URL.Host, r.Host = "s3.elsewhere.example", "s3.elsewhere.example"
	r = sign(r)
	r.URL.Host, r.Host = host, host
	return r
}

// slowCredentials wait for the clock: only a few requests try them.
var slowCredentials = []string{"a URL that has expired"}

// TestIntruderHasNoKey: no S3 request of a caller without the root key gets any
// data or changes anything, whatever it presents instead. The table of requests has
// every operation of the backend.
func TestIntruderHasNoKey(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "guarded")
	put(t, c, b, "big", []byte("guarded-bytes"), putOptions(""))
	upload, err := c.NewMultipartUpload(t.Context(), b, "upload", minio.PutObjectOptions{})
	require.NoError(t, err)
	requests := append(leakRequests(b, upload, "other bytes"), s3Request{name: "buckets", ops: []string{"ListBuckets"}, method: "GET"})
	picture := func() string {
		var s strings.Builder
		for o := range c.Client.ListObjects(t.Context(), b, minio.ListObjectsOptions{Recursive: true}) {
			fmt.Fprintln(&s, o.Key, o.Size, o.ETag)
		}
		for u := range c.ListIncompleteUploads(t.Context(), b, "", true) {
			fmt.Fprintln(&s, u.Key, u.UploadID, u.Size)
		}
		return s.String()
	}
	before := picture()
	for _, name := range slices.Sorted(maps.Keys(badCredentials)) {
		for n, r := range requests {
			if slices.Contains(slowCredentials, name) && n%12 != 0 {
				continue
			}
			target := "/"
			if r.name != "buckets" {
				target = "/" + b
			}
			if r.key != "" {
				target += "/" + r.key
			}
			if r.query != "" {
				target += "?" + r.query
			}
			got := exchange(t, badCredentials[name](r.request(t, target)))
			if got.status != http.StatusForbidden && got.status != http.StatusBadRequest && got.status != http.StatusNotImplemented {
				t.Errorf("%s with %s: %d %s", r.name, name, got.status, got.text)
			}
			for _, shown := range []string{"guarded-bytes", secretKey} {
				if strings.Contains(got.text, shown) {
					t.Errorf("%s with %s shows %q: %s", r.name, name, shown, got.text)
				}
			}
		}
		if after := picture(); after != before {
			t.Errorf("with %s: before\n%s\nafter\n%s", name, before, after)
			before = after
		}
	}
	// The requests are meaningful: with the key the backend answers each.
	for _, r := range leakRequests(b, upload, "other bytes") {
		target := "/" + b
		if r.key != "" {
			target += "/" + r.key
		}
		if r.query != "" {
			target += "?" + r.query
		}
		if got := exchange(t, signed(r.request(t, target), accessKey, secretKey, s3.DefaultRegion)); got.status == http.StatusForbidden {
			t.Errorf("%s with the key: %s", r.name, got.text)
		}
	}
}

// outside makes a file, a directory, and an upload beside the served directory, and
// links to them in a bucket. It returns a function that shows them as their owner
// sees them.
func outside(t *testing.T, b string) (picture func() string) {
	ctx := t.Context()
	dir := "/" + secret + "-dir"
	_, err := shared.owner.MkdirAll(ctx, dir+"/"+moraine.UploadsDir+"/00112233445566778899aabbccddeeff", 0o777)
	require.NoError(t, err)
	for _, name := range []string{secret + "-file", untold} {
		f, err := shared.owner.Create(ctx, dir+"/"+name, client.CreateOptions{})
		if moraine.KindOf(err) == moraine.Exists {
			continue // another test has made it
		}
		require.NoError(t, err)
		_, err = f.Write(bytes.Repeat([]byte(untold+"."), secretSize/7+1)[:secretSize])
		require.NoError(t, err)
		_, err = f.Commit(ctx)
		require.NoError(t, err)
	}
	for link, target := range map[string]string{"up": "../../" + secret + "-dir", "top": dir, "file": dir + "/" + secret + "-file",
		"far": "../../../../../" + secret + "-dir", "through": served + "/../" + secret + "-dir"} {
		_, err = shared.owner.Symlink(ctx, target, served+"/"+b+"/"+link)
		require.NoError(t, err)
	}
	return func() string {
		var s strings.Builder
		require.NoError(t, shared.owner.Walk(ctx, dir, func(path string, a client.Attr) error {
			fmt.Fprintln(&s, path, a.Size(), a.ModTime().UnixNano(), a.Generation(), a.Inode())
			return nil
		}))
		return s.String()
	}
}

// ways are the names, from a bucket, of what is outside; gone names nothing in the
// same way. Each is sent unchanged, as a key.
func ways(b string) (buckets, keys []string) {
	dir, file := secret+"-dir", secret+"-file"
	buckets = []string{"..", "%2e%2e", "%2E%2E", ".%2e", "..%2f..", "%252e%252e", "..%00", b + "%2f..", b + "/..", "", "%2f", "%5c..", dir, "..%2f" + dir, "%2e%2e%2f" + dir}
	keys = []string{"../../" + dir + "/" + file, "..%2f..%2f" + dir + "%2f" + file, "%2e%2e/%2e%2e/" + dir + "/" + file, "/" + dir + "/" + file,
		"%2f" + dir + "%2f" + file, "x/../../../" + dir + "/" + file, "//" + dir + "/" + file, "..%5c..%5c" + dir + "%5c" + file, "up/" + file, "top/" + file, "file",
		"far/" + file, "through/" + file, "up/../" + file, moraine.UploadsDir + "/../../../" + dir + "/" + file}
	return buckets, keys
}

// TestIntruderBeyondTheScope: a caller with the root key names what is beside the
// directory that confines the endpoint's certificate. It uses each part of each
// request that can name something: the bucket, the key, the source of a copy,
// prefix, marker and delimiter, the upload. No answer shows a name or a size from
// there, and nothing there changes. The answers are the same as for missing names.
func TestIntruderBeyondTheScope(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "confined")
	picture := outside(t, b)
	put(t, c, b, "big", []byte("own bytes"), putOptions(""))
	upload, err := c.NewMultipartUpload(t.Context(), b, "upload", minio.PutObjectOptions{})
	require.NoError(t, err)
	before := picture()
	require.Contains(t, before, fmt.Sprint(secretSize))
	buckets, keys := ways(b)
	gone := func(s string) string { return strings.ReplaceAll(s, secret, "nothing") }
	try := func(what string, r s3Request, target string) {
		send := func(target string, header map[string]string) answer {
			r := r
			r.header = header
			return exchange(t, signed(r.request(t, target), accessKey, secretKey, s3.DefaultRegion))
		}
		missing := map[string]string{}
		for k, v := range r.header {
			missing[k] = gone(v)
		}
		got, none := send(target, r.header), send(gone(target), missing)
		if strings.Contains(got.text, untold) || strings.Contains(got.text, fmt.Sprint(secretSize)) {
			t.Errorf("%s: %s %s shows what is outside: %s", what, r.method, target, got.text)
		}
		if got.status != none.status {
			t.Errorf("%s: %s %s: of a foreign thing %d %s, of none %d %s", what, r.method, target, got.status, got.text, none.status, none.text)
		}
	}
	unchanged := func(what string) {
		if after := picture(); after != before {
			t.Errorf("%s changed what is outside: before\n%s\nafter\n%s", what, before, after)
			before = after
		}
	}
	for _, r := range leakRequests(b, upload, "other bytes") {
		unchanged("what came before " + r.name)
		query := ""
		if r.query != "" {
			query = "?" + r.query
		}
		if r.key == "" {
			for _, up := range buckets {
				try(r.name+", bucket", r, "/"+up+query)
			}
			continue
		}
		for _, up := range buckets {
			try(r.name+", bucket", r, "/"+up+"/"+secret+"-dir/"+secret+"-file"+query)
			try(r.name+", bucket", r, "/"+up+"/"+secret+"-file"+query)
		}
		for _, key := range keys {
			try(r.name+", key", r, "/"+b+"/"+key+query)
		}
		if from := r.header["X-Amz-Copy-Source"]; from != "" {
			for _, key := range keys {
				header := maps.Clone(r.header)
				header["X-Amz-Copy-Source"] = "/" + b + "/" + key
				copied := r
				copied.header = header
				try(r.name+", source", copied, "/"+b+"/"+r.key+query)
			}
			for _, up := range buckets {
				header := maps.Clone(r.header)
				header["X-Amz-Copy-Source"] = "/" + up + "/" + secret + "-dir/" + secret + "-file"
				copied := r
				copied.header = header
				try(r.name+", source", copied, "/"+b+"/"+r.key+query)
			}
		}
		if strings.Contains(r.query, "uploadId") {
			for _, id := range []string{"00112233445566778899aabbccddeeff", "..%2f..%2f..%2f" + secret + "-dir", "../../../" + secret + "-dir/" + moraine.UploadsDir + "/00112233445566778899aabbccddeeff"} {
				try(r.name+", upload", r, "/"+b+"/"+r.key+"?"+regexp.MustCompile(`uploadId=[^&]*`).ReplaceAllString(r.query, "uploadId="+id))
			}
		}
	}
	for _, list := range []string{"?prefix=", "?list-type=2&prefix=", "?list-type=2&start-after=", "?delimiter=/&prefix=", "?marker=", "?uploads&prefix=", "?list-type=2&delimiter=/&prefix="} {
		for _, at := range append(keys, "..", "../", "../../", "/", "up/", "top/", "far/", "through/") {
			try("list", s3Request{method: "GET"}, "/"+b+list+url.QueryEscape(at))
		}
	}
	unchanged("a list")
}
