package s3_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/s3"
)

// guarded are the bytes of the objects that a holder of a URL or a form must not get or change.
const guarded = "guarded-bytes"

// pictureOf shows everything in buckets, as the holder of the root key sees it.
func pictureOf(t *testing.T, c *minio.Core, buckets ...string) string {
	t.Helper()
	var s strings.Builder
	for _, b := range buckets {
		for o := range c.Client.ListObjects(t.Context(), b, minio.ListObjectsOptions{Recursive: true, WithMetadata: true}) {
			require.NoError(t, o.Err)
			fmt.Fprintln(&s, b, o.Key, o.Size, o.ETag, o.LastModified)
		}
		for u := range c.ListIncompleteUploads(t.Context(), b, "", true) {
			require.NoError(t, u.Err)
			fmt.Fprintln(&s, b, u.Key, u.UploadID, u.Size)
		}
	}
	return s.String()
}

// presignedFor returns a URL of the root key for one request, valid for some seconds, as a request.
func presignedFor(t *testing.T, method, bucket, key string, seconds int64) *http.Request {
	t.Helper()
	r := s3Request{method: method}
	if method == http.MethodPut {
		r.body = "the bytes of the intruder"
	}
	return presigned(r.request(t, "/"+bucket+"/"+key), accessKey, secretKey, seconds)
}

// queryChange replaces a part of the query, or appends to it if there is no such part.
func queryChange(part, by string) func(*http.Request) {
	return func(r *http.Request) {
		at := regexp.MustCompile("(^|&)" + part + "=[^&]*")
		if part == "" || !at.MatchString(r.URL.RawQuery) {
			r.URL.RawQuery += by
			return
		}
		r.URL.RawQuery = strings.Trim(at.ReplaceAllString(r.URL.RawQuery, by), "&")
	}
}

func pathChange(path string) func(*http.Request) {
	return func(r *http.Request) {
		plain, _ := url.PathUnescape(path)
		r.URL.Path, r.URL.RawPath = plain, path
	}
}

func headerChange(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// urlChanges are what the holder of a presigned URL may change in it. b is the bucket of the URL,
// other another one. "k" and "l" are objects in both.
func urlChanges(b, other string) map[string]func(*http.Request) {
	changes := map[string]func(*http.Request){
		"another bucket":           pathChange("/" + other + "/k"),
		"a bucket that is missing": pathChange("/no-such-bucket/k"),
		"another key":              pathChange("/" + b + "/l"),
		"a key that is missing":    pathChange("/" + b + "/missing"),
		"the bucket":               pathChange("/" + b),
		"a directory":              pathChange("/" + b + "/k/"),
		"a way around":             pathChange("/" + b + "/x/../l"),
		"a way around, escaped":    pathChange("/" + b + "/k%2f..%2fl"),
		"a later end":              queryChange("X-Amz-Expires", "&X-Amz-Expires=604800"),
		"a second end":             queryChange("", "&X-Amz-Expires=604800"),
		"a first end":              func(r *http.Request) { r.URL.RawQuery = "X-Amz-Expires=604800&" + r.URL.RawQuery },
		"no end":                   queryChange("X-Amz-Expires", ""),
		"another date":             queryChange("X-Amz-Date", "&X-Amz-Date="+time.Now().Add(time.Minute).UTC().Format("20060102T150405Z")),
		"an empty signature":       queryChange("X-Amz-Signature", "&X-Amz-Signature="),
		"no signature":             queryChange("X-Amz-Signature", ""),
		"another access key":       queryChange("X-Amz-Credential", "&X-Amz-Credential=nobody%2F"+time.Now().UTC().Format("20060102")+"%2F"+s3.DefaultRegion+"%2Fs3%2Faws4_request"),
		"another region":           queryChange("X-Amz-Credential", "&X-Amz-Credential="+accessKey+"%2F"+time.Now().UTC().Format("20060102")+"%2Fmars%2Fs3%2Faws4_request"),
		"no signed headers":        queryChange("X-Amz-SignedHeaders", "&X-Amz-SignedHeaders="),
		"another algorithm":        queryChange("X-Amz-Algorithm", "&X-Amz-Algorithm=none"),
		"another host":             func(r *http.Request) { r.Host = "s3.elsewhere.example" },
		"a copy":                   headerChange("X-Amz-Copy-Source", "/"+other+"/l"),
		"metadata":                 headerChange("X-Amz-Meta-More", "x"),
		"tags":                     headerChange("X-Amz-Tagging", "a=b"),
	}
	for _, arg := range []string{"versionId=null", "response-content-type=text%2Fhtml", "uploadId=1&partNumber=1", "uploads", "tagging", "acl", "attributes",
		"delete", "partNumber=1", "x-id=PutObject", "x-amz-acl=public-read", "X-Amz-Security-Token=x", "X-Amz-Copy-Source=%2F" + other + "%2Fl", "list-type=2"} {
		changes["an argument more, "+arg] = queryChange("", "&"+arg)
	}
	return changes
}

// urlMethods are the methods for which a URL is signed, and those that its holder tries.
var urlMethods = []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete, http.MethodPost}

// errorCode returns the code in an answer, "" without one.
func (a answer) errorCode() string {
	_, after, _ := strings.Cut(a.text, "<Code>")
	code, _, _ := strings.Cut(after, "</Code>")
	return code
}

// TestIntruderWithAPresignedURL: the holder of a URL that the root key signed for one request
// changes the URL: the bucket, the key, the method, its end, its arguments, the host, headers.
// Every such request is refused, gets no byte, changes nothing, and has the same answer whether
// what it names exists or not.
func TestIntruderWithAPresignedURL(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b, other := bucket(t, c, "presigned"), bucket(t, c, "presigned-other")
	for _, in := range []string{b, other} {
		for _, key := range []string{"k", "l"} {
			put(t, c, in, key, []byte(guarded), putOptions(""))
		}
	}
	before := pictureOf(t, c, b, other)
	// try sends two requests, for an object that exists and for one that does not.
	try := func(what, method string, change func(*http.Request)) {
		t.Helper()
		var got [2]answer
		for i, key := range []string{"k", "none"} {
			req := presignedFor(t, method, b, key, 3600)
			change(req)
			got[i] = exchange(t, req)
			if s := got[i].status; s != http.StatusForbidden && s != http.StatusBadRequest && s != http.StatusNotImplemented && s != http.StatusMethodNotAllowed {
				t.Errorf("%s, a URL for %s of %s: %d %s", what, method, key, s, got[i].text)
			}
			for _, shown := range []string{guarded, secretKey} {
				if strings.Contains(got[i].text, shown) {
					t.Errorf("%s, a URL for %s of %s shows %q", what, method, key, shown)
				}
			}
		}
		if got[0].status != got[1].status || got[0].errorCode() != got[1].errorCode() {
			t.Errorf("%s, a URL for %s: %d %s if the object exists, %d %s if not", what, method,
				got[0].status, got[0].errorCode(), got[1].status, got[1].errorCode())
		}
		if after := pictureOf(t, c, b, other); after != before {
			t.Errorf("%s, a URL for %s: before\n%s\nafter\n%s", what, method, before, after)
			before = after
		}
	}
	changes := urlChanges(b, other)
	for _, method := range urlMethods[:4] {
		for _, name := range slices.Sorted(maps.Keys(changes)) {
			try(name, method, changes[name])
		}
		for _, to := range urlMethods {
			if to != method {
				try("method "+to, method, func(r *http.Request) { r.Method = to })
			}
		}
	}
	// Unchanged, each URL does what it was signed for.
	require.Equal(t, http.StatusOK, exchange(t, presignedFor(t, http.MethodHead, b, "k", 60)).status)
	require.Contains(t, exchange(t, presignedFor(t, http.MethodGet, b, "k", 60)).text, guarded)
	require.Equal(t, http.StatusOK, exchange(t, presignedFor(t, http.MethodPut, b, "n", 60)).status)
	require.Equal(t, http.StatusNoContent, exchange(t, presignedFor(t, http.MethodDelete, b, "n", 60)).status)
}

// TestIntruderWithAnOldPresignedURL: URLs that have expired, and URLs of an access key or a secret
// that the endpoint no longer has, are refused like wrong ones.
func TestIntruderWithAnOldPresignedURL(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "old-urls")
	put(t, c, b, "k", []byte(guarded), putOptions(""))
	before := pictureOf(t, c, b)
	former := func(access, secret string) func(method, key string) *http.Request {
		return func(method, key string) *http.Request {
			return presigned((&s3Request{method: method, body: "x"}).request(t, "/"+b+"/"+key), access, secret, 3600)
		}
	}
	ways := map[string]func(method, key string) *http.Request{
		"expired":                 func(method, key string) *http.Request { return presignedFor(t, method, b, key, 1) },
		"of a revoked access key": former("formerkey", secretKey),
		"of a former secret":      former(accessKey, "former"+secretKey),
	}
	for name, way := range ways {
		var all [][2]*http.Request
		for _, method := range urlMethods[:4] {
			all = append(all, [2]*http.Request{way(method, "k"), way(method, "none")})
		}
		if name == "expired" {
			time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(2100 * time.Millisecond)))
		}
		for _, pair := range all {
			there, not := exchange(t, pair[0]), exchange(t, pair[1])
			require.Equal(t, http.StatusForbidden, there.status, "%s, %s: %s", name, pair[0].Method, there.text)
			require.NotContains(t, there.text, guarded)
			require.Equal(t, there.status, not.status, "%s, %s", name, pair[0].Method)
			require.Equal(t, there.errorCode(), not.errorCode(), "%s, %s", name, pair[0].Method)
		}
		require.Equal(t, before, pictureOf(t, c, b), name)
	}
}

// TestIntruderWithAPresignedURLBeyondTheScope: a URL with a real signature that names what is
// beside the directory of the endpoint's certificate gets and changes nothing there.
func TestIntruderWithAPresignedURLBeyondTheScope(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "urls-beyond")
	picture := outside(t, b)
	before := picture()
	_, keys := ways(b)
	for _, method := range urlMethods[:4] {
		for _, key := range keys {
			got := exchange(t, presignedFor(t, method, b, key, 3600))
			none := exchange(t, presignedFor(t, method, b, strings.ReplaceAll(key, secret, "nothing"), 3600))
			if strings.Contains(got.text, untold) || strings.Contains(got.text, fmt.Sprint(secretSize)) || got.status != none.status {
				t.Errorf("%s %s: of a foreign thing %d %s, of none %d %s", method, key, got.status, got.text, none.status, none.text)
			}
		}
	}
	require.Equal(t, before, picture())
}
