package s3_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/signer"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/s3"
)

// form is what a browser posts: the fields with the policy that the root key signed, and a file.
type form struct {
	bucket string // of the URL
	fields map[string]string
	file   string
	noFile bool
	after  string // what follows the form in the body
	cut    int    // how many bytes are missing at the end of the body
	// The policy, before it is signed.
	expires    time.Time
	conditions []any
	secret     string
	raw        string // the policy, instead of one made of the above
}

// newForm is a form for keys that begin with "up/" in bucket b, and files of 1 to 10 bytes.
func newForm(b string) *form {
	now := time.Now().UTC()
	f := &form{bucket: b, file: "bytes", expires: now.Add(time.Minute), secret: secretKey, fields: map[string]string{
		"key": "up/k", "x-amz-algorithm": "AWS4-HMAC-SHA256", "x-amz-date": now.Format("20060102T150405Z"),
		"x-amz-credential": credentialOf(accessKey, now, s3.DefaultRegion)}}
	f.conditions = []any{map[string]string{"bucket": b}, []any{"starts-with", "$key", "up/"}, []any{"content-length-range", 1, 10},
		[]any{"starts-with", "$x-amz-algorithm", ""}, []any{"starts-with", "$x-amz-date", ""}, []any{"starts-with", "$x-amz-credential", ""}}
	return f
}

func credentialOf(access string, at time.Time, region string) string {
	return fmt.Sprintf("%s/%s/%s/s3/aws4_request", access, at.Format("20060102"), region)
}

// sign adds the policy and its signature to the fields.
func (f *form) sign(t *testing.T) *form {
	t.Helper()
	policy := []byte(f.raw)
	if f.raw == "" {
		var err error
		policy, err = json.Marshal(map[string]any{"expiration": f.expires.Format("2006-01-02T15:04:05.000Z"), "conditions": f.conditions})
		require.NoError(t, err)
	}
	at, err := time.Parse("20060102T150405Z", f.fields["x-amz-date"])
	require.NoError(t, err)
	f.fields["policy"] = base64.StdEncoding.EncodeToString(policy)
	f.fields["x-amz-signature"] = signer.PostPresignSignatureV4(f.fields["policy"], at, f.secret, s3.DefaultRegion)
	return f
}

// post sends the form.
func (f *form) post(t *testing.T) answer {
	t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	for _, name := range slices.Sorted(maps.Keys(f.fields)) {
		require.NoError(t, w.WriteField(name, f.fields[name]))
	}
	if !f.noFile {
		part, err := w.CreateFormFile("file", "name")
		require.NoError(t, err)
		_, err = io.WriteString(part, f.file)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	body.WriteString(f.after)
	body.Truncate(body.Len() - f.cut)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+shared.endpoint+"/"+f.bucket, &body)
	require.NoError(t, err)
	req.Header.Set("Content-Type", w.FormDataContentType())
	return exchange(t, req)
}

const cutBody = "a body that is cut"

// formChanges are what the holder of a form may change in it, after (signed) or before (unsigned)
// the root key signed the policy. The latter are forms whose policy does not allow what they ask.
func formChanges(other string) (unsigned, signed map[string]func(*form)) {
	now := time.Now().UTC()
	field := func(name, value string) func(*form) { return func(f *form) { f.fields[name] = value } }
	unsigned = map[string]func(*form){
		"a key outside the prefix":     field("key", "other/k"),
		"a key that the prefix begins": field("key", "up"),
		"a key in another case":        field("key", "UP/k"),
		"a way out of the prefix":      field("key", "up/../other"),
		"an empty key":                 field("key", ""),
		"too many bytes":               func(f *form) { f.file = strings.Repeat("x", 11) },
		"very many bytes":              func(f *form) { f.file = strings.Repeat("x", 300_000) },
		"too few bytes":                func(f *form) { f.file = "" },
		"too few bytes, and a tail":    func(f *form) { f.file, f.after = "", "\r\ntail" },
		"an expired policy":            func(f *form) { f.expires = now.Add(-time.Second) },
		"an old date":                  field("x-amz-date", now.Add(-2*time.Hour).Format("20060102T150405Z")),
		"another secret":               func(f *form) { f.secret = "former" + secretKey },
		"an unknown access key":        field("x-amz-credential", credentialOf("nobody", now, s3.DefaultRegion)),
		"another region":               field("x-amz-credential", credentialOf(accessKey, now, "mars")),
		"another day":                  field("x-amz-credential", credentialOf(accessKey, now.Add(-24*time.Hour), s3.DefaultRegion)),
		"a policy without a bucket":    func(f *form) { f.conditions = f.conditions[1:] },
		"a policy without a key":       func(f *form) { f.conditions = slices.Delete(f.conditions, 1, 2) },
		"a policy of nothing":          func(f *form) { f.conditions = nil },
		"a policy for another bucket":  func(f *form) { f.conditions[0] = map[string]string{"bucket": other} },
		"no policy":                    func(f *form) { f.raw = "{}" },
		"a policy that is no JSON":     func(f *form) { f.raw = "{" },
	}
	signed = map[string]func(*form){
		"another bucket":           func(f *form) { f.bucket = other },
		"a bucket that is missing": func(f *form) { f.bucket = "no-such-bucket" },
		"a wider policy": func(f *form) {
			f.fields["policy"] = base64.StdEncoding.EncodeToString([]byte(`{"expiration":"2099-01-01T00:00:00.000Z","conditions":[["starts-with","$key",""]]}`))
		},
		"another signature":   field("x-amz-signature", strings.Repeat("0", 64)),
		"an empty signature":  field("x-amz-signature", ""),
		"another algorithm":   field("x-amz-algorithm", "AWS4-ECDSA-P256-SHA256"),
		"metadata":            field("x-amz-meta-more", "x"),
		"an access list":      field("acl", "public-read"),
		"tags":                field("tagging", "<Tagging/>"),
		"a redirection":       field("success_action_redirect", "http://elsewhere.example/"),
		"a session token":     field("x-amz-security-token", "x"),
		"no file":             func(f *form) { f.noFile = true },
		"no credentials":      func(f *form) { f.fields = map[string]string{"key": "up/k"} },
		"nothing but a file":  func(f *form) { f.fields = nil },
		cutBody:               func(f *form) { f.cut = 10 },
		"another content":     field("content-type", "text/html"),
		"another level, form": field("x-moraine-ack", "memory"),
	}
	for _, name := range []string{"key", "policy", "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature"} {
		signed["no "+name] = func(f *form) { delete(f.fields, name) }
	}
	return unsigned, signed
}

// TestIntruderWithAForm: the holder of a form posts what its policy does not allow, or changes the
// policy. Each form is refused and writes nothing. A refused form has the same answer whether the
// bucket has an object of that key or not.
func TestIntruderWithAForm(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b, other := bucket(t, c, "posted"), bucket(t, c, "posted-other")
	for _, in := range []string{b, other} {
		put(t, c, in, "up/there", []byte(guarded), putOptions(""))
		put(t, c, in, "other/there", []byte(guarded), putOptions(""))
	}
	before := pictureOf(t, c, b, other)
	unsigned, signed := formChanges(other)
	try := func(name string, make func(key string) *form) {
		t.Helper()
		var got [2]answer
		for i, key := range []string{"k", "there"} {
			got[i] = make(key).post(t)
			// The HTTP library answers a body that is cut with an internal error.
			if s := got[i].status; s < 400 || s >= 500 && s != http.StatusNotImplemented && name != cutBody {
				t.Errorf("%s: %d %s", name, s, got[i].text)
			}
			for _, shown := range []string{guarded, secretKey} {
				if strings.Contains(got[i].text, shown) {
					t.Errorf("%s shows %q: %s", name, shown, got[i].text)
				}
			}
		}
		if got[0].status != got[1].status || got[0].errorCode() != got[1].errorCode() {
			t.Errorf("%s: %d %s for a new key, %d %s for one that exists", name, got[0].status, got[0].errorCode(), got[1].status, got[1].errorCode())
		}
		if after := pictureOf(t, c, b, other); after != before {
			t.Errorf("%s: before\n%s\nafter\n%s", name, before, after)
			before = after
		}
	}
	keyed := func(f *form, key string) *form {
		if k, ok := f.fields["key"]; ok {
			f.fields["key"] = strings.TrimSuffix(k, "k") + key
		}
		return f
	}
	for _, name := range slices.Sorted(maps.Keys(unsigned)) {
		try(name, func(key string) *form {
			f := newForm(b)
			unsigned[name](f)
			if name != "an empty key" && name != "a key that the prefix begins" && name != "a way out of the prefix" {
				keyed(f, key)
			}
			return f.sign(t)
		})
	}
	for _, name := range slices.Sorted(maps.Keys(signed)) {
		try(name, func(key string) *form {
			f := keyed(newForm(b), key).sign(t)
			signed[name](f)
			return f
		})
	}
	got := newForm(b).sign(t).post(t)
	require.Less(t, got.status, 300, "the form itself is good: %s", got.text)
	data, _ := get(t, c, b, "up/k", minio.GetObjectOptions{})
	require.Equal(t, "bytes", string(data))
}

// TestIntruderWithAFormBeyondTheScope: a form whose policy allows every key names what is beside
// the directory of the endpoint's certificate. It writes nothing there.
func TestIntruderWithAFormBeyondTheScope(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "forms-beyond")
	picture := outside(t, b)
	before := picture()
	_, keys := ways(b)
	for _, key := range keys {
		post := func(key string) answer {
			f := newForm(b)
			f.fields["key"], f.conditions[1] = key, []any{"starts-with", "$key", ""}
			return f.sign(t).post(t)
		}
		got, none := post(key), post(strings.ReplaceAll(key, secret, "nothing"))
		if strings.Contains(got.text, untold) || strings.Contains(got.text, fmt.Sprint(secretSize)) {
			t.Errorf("%s shows what is outside: %s", key, got.text)
		}
		if got.status != none.status {
			t.Errorf("%s: of a foreign thing %d %s, of none %d %s", key, got.status, got.text, none.status, none.text)
		}
	}
	require.Equal(t, before, picture())
}
