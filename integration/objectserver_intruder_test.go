package integration_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/signer"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/tiers/object"
)

// TestIntruderAtTheLocalBucket: without the keys of the local bucket a caller
// cannot read, list, write or delete anything in it. Other keys do not help, such
// as the root key of the cluster's S3 endpoint. Nor does a request signed for
// another host, method or key. Even with its keys no caller reads what lies beside
// its objects.
func TestIntruderAtTheLocalBucket(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1, ObjectServer: true, S3: true})
	b, node := bucketOf(t, c)
	keys, err := object.LoadKeys(node.KeysFile())
	require.NoError(t, err)
	root, err := credentials.NewFileAWSCredentials(c.Node(devcluster.S3Name).CredentialsFile(), "default").GetWithContext(nil)
	require.NoError(t, err)
	const secret, region = "sekrit-bytes", "us-east-1"
	id, err := b.NewUpload(t.Context(), "sekrit-key", nil)
	require.NoError(t, err)
	part, err := b.PutPart(t.Context(), "sekrit-key", id, 1, []byte(secret), crc.Sum([]byte(secret)))
	require.NoError(t, err)
	done, err := b.Complete(t.Context(), "sekrit-key", id, []object.Part{part}, crc.Sum([]byte(secret)), true, object.Condition{})
	require.NoError(t, err)

	sign := func(r *http.Request, access, secret string) *http.Request {
		r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
		return signer.SignV4(*r, access, secret, "", region)
	}
	// as signs, with the right keys, a changed copy of the request.
	as := func(change func(*http.Request), sign func(*http.Request) *http.Request) func(*http.Request) *http.Request {
		return func(r *http.Request) *http.Request {
			method, target, host := r.Method, *r.URL, r.Host
			change(r)
			r = sign(r)
			r.Method, r.Host, r.URL.Host, r.URL.Path = method, host, target.Host, target.Path
			return r
		}
	}
	right := func(r *http.Request) *http.Request { return sign(r, keys.Access, keys.Secret) }
	link := func(r *http.Request) *http.Request {
		return signer.PreSignV4(*r, keys.Access, keys.Secret, "", region, 3600)
	}
	ways := map[string]func(*http.Request) *http.Request{
		"no key":         func(r *http.Request) *http.Request { return r },
		"the key of S3":  func(r *http.Request) *http.Request { return sign(r, root.AccessKeyID, root.SecretAccessKey) },
		"a wrong secret": func(r *http.Request) *http.Request { return sign(r, keys.Access, root.SecretAccessKey) },
		"a wrong name":   func(r *http.Request) *http.Request { return sign(r, root.AccessKeyID, keys.Secret) },
		"a wrong secret's URL": func(r *http.Request) *http.Request {
			return signer.PreSignV4(*r, keys.Access, root.SecretAccessKey, "", region, 3600)
		},
	}
	for name, change := range map[string]func(*http.Request){
		"host":   func(r *http.Request) { r.Host, r.URL.Host = "elsewhere.example", "elsewhere.example" },
		"method": func(r *http.Request) { r.Method = http.MethodOptions },
		"key":    func(r *http.Request) { r.URL.Path = "/moraine/another" },
	} {
		ways["a signature for another "+name] = as(change, right)
		ways["a URL for another "+name] = as(change, link)
	}
	do := func(method, target, body string, sign func(*http.Request) *http.Request) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+node.Address+target, strings.NewReader(body))
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(sign(req))
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, fmt.Sprint(resp.Header) + string(text)
	}
	unchanged := func() {
		got := make([]byte, len(secret))
		require.NoError(t, b.Get(t.Context(), done.Ref, 0, got))
		require.Equal(t, secret, string(got))
		_, listed := do("GET", "/moraine", "", right)
		require.Equal(t, 1, strings.Count(listed, "<Key>"), listed)
	}
	complete := `<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>"x"</ETag></Part></CompleteMultipartUpload>`
	for what, way := range ways {
		for _, r := range [][3]string{{"GET", "/"}, {"GET", "/moraine"}, {"HEAD", "/moraine"}, {"GET", "/moraine?list-type=2"}, {"GET", "/moraine?uploads"}, {"GET", "/moraine/sekrit-key"},
			{"HEAD", "/moraine/sekrit-key"}, {"PUT", "/moraine/sekrit-key", "lies"}, {"PUT", "/moraine/new", "lies"}, {"DELETE", "/moraine/sekrit-key"}, {"DELETE", "/moraine"},
			{"POST", "/moraine/new?uploads"}, {"PUT", "/moraine/new?partNumber=1&uploadId=" + id, "lies"}, {"POST", "/moraine/sekrit-key?uploadId=" + id, complete}, {"PUT", "/other"}} {
			status, text := do(r[0], r[1], r[2], way)
			if status < 400 || status >= 500 {
				t.Errorf("%s %s with %s: %d %s", r[0], r[1], what, status, text)
			}
			for _, shown := range []string{secret, keys.Secret} {
				require.NotContains(t, text, shown, "%s %s with %s", r[0], r[1], what)
			}
			if !strings.Contains(r[1], "sekrit") {
				require.NotContains(t, text, "sekrit", "%s %s with %s", r[0], r[1], what)
			}
		}
		unchanged()
	}
	status, _ := do("GET", "/moraine/sekrit-key", "", right)
	require.Equal(t, http.StatusOK, status, "the requests mean something")
	kept, err := os.ReadFile(node.KeysFile())
	require.NoError(t, err)
	for _, up := range []string{"../keys", "..%2fkeys", "..%2f..%2fkeys", "%2e%2e/%2e%2e/keys", "%2f..%2fkeys", "x/../../../keys"} {
		for _, at := range []string{"/moraine/", "/", "/../"} {
			text := ""
			req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+node.Address+"/", nil)
			require.NoError(t, err)
			req.URL.RawPath = at + up
			req.URL.Path, err = url.PathUnescape(at + up)
			require.NoError(t, err)
			resp, err := http.DefaultTransport.RoundTrip(right(req))
			require.NoError(t, err)
			b, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			resp.Body.Close()
			text = string(b)
			require.NotContains(t, text, keys.Secret, at+up)
			require.NotEqual(t, string(kept), text)
			require.GreaterOrEqual(t, resp.StatusCode, 300, "%s: %s", at+up, text)
		}
	}
	unchanged()
}
