package s3_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
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

// hasher is the hash with which the signer of streams hashes chunks.
type hasher struct{ hash.Hash }

func (hasher) Close() {}

// stream makes the PUT of an object whose body is a stream of chunks (aws-chunked).
// The chunks are signed if sign is set. If trailer is set, the stream has the
// checksum of the whole in a trailer.
func stream(t *testing.T, path string, data []byte, sign, trailer bool, secret string) (*http.Request, []byte) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+shared.endpoint+path, bytes.NewReader(data))
	require.NoError(t, err)
	if trailer {
		sum := base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))))
		req.Trailer = http.Header{"X-Amz-Checksum-Crc32c": {sum}}
	}
	now := time.Now().UTC()
	if sign {
		req = signer.StreamingSignV4(req, accessKey, secret, "", s3.DefaultRegion, int64(len(data)), now, hasher{sha256.New()})
	} else {
		trailer := req.Trailer
		req.Trailer = nil
		req.Header.Set("X-Amz-Content-Sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
		req.Header.Set("X-Amz-Decoded-Content-Length", fmt.Sprint(len(data)))
		req = signer.SignV4Trailer(*req, accessKey, secret, "", s3.DefaultRegion, trailer)
	}
	body, err := io.ReadAll(req.Body)
	require.NoError(t, err)
	if sign && trailer { // the signer ends the line differently from AWS, whose form the endpoint accepts
		body = bytes.Replace(body, []byte("==\n\r\n"), []byte("==\r\n"), 1)
	}
	return req, body
}

// deliver sends a request with another body.
func deliver(t *testing.T, req *http.Request, body []byte) answer {
	req.Body, req.ContentLength, req.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	return exchange(t, req)
}

// behind returns where the chunk ends that begins at an offset of a stream: its
// head is a line.
func behind(b []byte, at int) int {
	return at + bytes.Index(b[at:], []byte("\r\n")) + 2 + 64<<10 + 2
}

// alterations are changes to a stream in transit.
var alterations = map[string]func(req *http.Request, b []byte) []byte{
	"a byte of the first chunk": func(_ *http.Request, b []byte) []byte { b[bytes.Index(b, []byte("\r\n"))+100] ^= 1; return b },
	"a byte of the last chunk":  func(_ *http.Request, b []byte) []byte { b[bytes.LastIndex(b, []byte("\r\n0"))-10] ^= 1; return b },
	"a chunk left out":          func(_ *http.Request, b []byte) []byte { return b[behind(b, 0):] },
	"chunks in another order": func(_ *http.Request, b []byte) []byte {
		second := behind(b, 0)
		third := behind(b, second)
		return slices.Concat(b[second:third], b[:second], b[third:])
	},
	"the end": func(_ *http.Request, b []byte) []byte { return b[:len(b)-200] },
	"its length": func(req *http.Request, b []byte) []byte {
		req.Header.Set("X-Amz-Decoded-Content-Length", "100")
		return b
	},
}

// signedAlterations are those of a stream with signed chunks.
var signedAlterations = map[string]func(req *http.Request, b []byte) []byte{
	"a chunk's signature": func(_ *http.Request, b []byte) []byte {
		at := bytes.Index(b, []byte("chunk-signature=")) + 16
		copy(b[at:], strings.Repeat("0", 64))
		return b
	},
	"no chunk's signature": func(_ *http.Request, b []byte) []byte {
		at := bytes.Index(b, []byte(";chunk-signature="))
		return append(b[:at:at], b[at+17+64:]...)
	},
}

// trailerAlterations are those of a stream with a trailer.
var trailerAlterations = map[string]func(req *http.Request, b []byte) []byte{
	"the checksum in the trailer": func(_ *http.Request, b []byte) []byte {
		at := bytes.LastIndex(b, []byte("rc32c:")) + 6
		copy(b[at:], "AAAAAA==")
		return b
	},
}

// TestIntruderInAStream: an upload in chunks was altered in transit: a chunk, its
// signature, their order, the end or the checksum after them; or the key is wrong.
// Nothing of it is stored. An earlier object of that name stays unchanged.
func TestIntruderInAStream(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "streams")
	data, kept := bytesOf(7, 200_000), []byte("what was there")
	for name, kind := range map[string]struct{ sign, trailer bool }{"signed": {true, false}, "signed with a trailer": {true, true}, "a trailer": {false, true}} {
		intact := func(key, secret string) (*http.Request, []byte) {
			return stream(t, "/"+b+"/"+key, data, kind.sign, kind.trailer, secret)
		}
		req, body := intact("intact", secretKey)
		a := deliver(t, req, body)
		require.Equal(t, http.StatusOK, a.status, "%s as it was sent: %s", name, a.text)
		got, _ := get(t, c, b, "intact", minio.GetObjectOptions{})
		require.Equal(t, data, got, name)
		tried := 0
		for _, set := range []map[string]func(*http.Request, []byte) []byte{alterations, signedAlterations, trailerAlterations} {
			for what, alter := range set {
				if _, of := signedAlterations[what]; of && !kind.sign {
					continue
				}
				if _, of := trailerAlterations[what]; of && !kind.trailer {
					continue
				}
				tried++
				for _, key := range []string{"new", "old"} {
					put(t, c, b, "old", kept, putOptions(""))
					req, body := intact(key, secretKey)
					was := fmt.Sprint(req.Header) + string(body)
					body = alter(req, body)
					require.NotEqual(t, was, fmt.Sprint(req.Header)+string(body), what)
					if a := deliver(t, req, body); a.status < 400 {
						t.Errorf("%s, altered in %s: %d %s", name, what, a.status, a.text)
					}
					_, err := c.StatObject(t.Context(), b, "new", minio.StatObjectOptions{})
					require.Error(t, err, "%s, altered in %s, is stored", name, what)
					got, _ := get(t, c, b, "old", minio.GetObjectOptions{})
					require.Equal(t, kept, got, "%s, altered in %s", name, what)
				}
			}
		}
		require.GreaterOrEqual(t, tried, len(alterations)+1)
		req, body = intact("new", "wrong"+secretKey)
		require.Equal(t, http.StatusForbidden, deliver(t, req, body).status, name)
		_, err := c.StatObject(t.Context(), b, "new", minio.StatObjectOptions{})
		require.Error(t, err)
	}
}

// TestIntruderWithLargeHeaders: a request with very large headers or a very large
// target is refused, and the endpoint continues.
func TestIntruderWithLargeHeaders(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "large")
	put(t, c, b, "key", []byte("bytes"), putOptions(""))
	for name, grow := range map[string]func(*http.Request){
		"one header": func(r *http.Request) { r.Header.Set("X-Amz-Meta-Large", strings.Repeat("x", 1<<20)) },
		"many headers": func(r *http.Request) {
			for n := range 20_000 {
				r.Header.Set(fmt.Sprintf("X-Amz-Meta-%d", n), "x")
			}
		},
		"the target":    func(r *http.Request) { r.URL.RawQuery = "prefix=" + strings.Repeat("x", 1<<20) },
		"the signature": func(r *http.Request) { r.Header.Set("Authorization", "AWS4-HMAC-SHA256 "+strings.Repeat("x", 1<<20)) },
	} {
		r := s3Request{method: "GET"}
		req := r.request(t, "/"+b+"/key")
		grow(req)
		resp, err := http.DefaultTransport.(*http.Transport).Clone().RoundTrip(req)
		if err == nil { // otherwise it disconnected
			require.GreaterOrEqual(t, resp.StatusCode, 400, name)
			body, _ := io.ReadAll(resp.Body)
			require.NotContains(t, string(body), "bytes", name)
			resp.Body.Close()
		}
		got, _ := get(t, c, b, "key", minio.GetObjectOptions{})
		require.Equal(t, "bytes", string(got), "after %s", name)
	}
}
