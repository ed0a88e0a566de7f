package s3

import (
	"encoding/base64"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/minio/crc64nvme"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"
)

// checksum is a checksum that a client announced and that the body matched.
type checksum struct {
	Algorithm types.ChecksumAlgorithm `json:"algorithm"`
	Type      types.ChecksumType      `json:"type"`
	Value     string                  `json:"value"` // base64
}

// sums is the checksum fields of a request or reply, by algorithm.
type sums map[types.ChecksumAlgorithm]*string

func sumsOf(c32, c32c, sha1, sha256, c64, sha512, md5, x64, x3, x128 *string) sums {
	return sums{
		types.ChecksumAlgorithmCrc32: c32, types.ChecksumAlgorithmCrc32c: c32c, types.ChecksumAlgorithmSha1: sha1,
		types.ChecksumAlgorithmSha256: sha256, types.ChecksumAlgorithmCrc64nvme: c64, types.ChecksumAlgorithmSha512: sha512,
		types.ChecksumAlgorithmMd5: md5, types.ChecksumAlgorithmXxhash64: x64, types.ChecksumAlgorithmXxhash3: x3,
		types.ChecksumAlgorithmXxhash128: x128,
	}
}

// announced returns the one checksum of a request's headers.
func (s sums) announced() (types.ChecksumAlgorithm, string) {
	for algorithm, v := range s {
		if str(v) != "" {
			return algorithm, *v
		}
	}
	return "", ""
}

// body reads a request's body, counts it, and verifies it against the announced
// checksum.
type body struct {
	r         io.Reader
	bytes     int64
	want      int64 // announced length
	algorithm types.ChecksumAlgorithm
	value     string    // announced; empty: none
	sum       hash.Hash // nil: none is computed here
	trailer   middlewares.ChecksumReader
	from      transfer
	err       error // error of S3 that ended the read
}

// newBody returns the body of a PUT of length bytes. algorithm, if not empty, is
// the one that the client wants.
func newBody(r io.Reader, length *int64, algorithm types.ChecksumAlgorithm, headers sums) (*body, error) {
	if r == nil {
		r = strings.NewReader("")
	}
	b := &body{r: r, algorithm: algorithm}
	if length != nil {
		b.want = *length
	}
	// The library itself verifies a checksum in the trailer against the body.
	if t, ok := r.(middlewares.ChecksumReader); ok && t.Algorithm() != "" {
		b.trailer, b.algorithm = t, types.ChecksumAlgorithm(strings.ToUpper(t.Algorithm()))
		return b, nil
	}
	if a, v := headers.announced(); a != "" {
		b.algorithm, b.value = a, v
	}
	if b.algorithm != "" {
		var err error
		b.sum, err = newHash(b.algorithm)
		return b, err
	}
	return b, nil
}

// newHash returns a hash of an algorithm.
func newHash(algorithm types.ChecksumAlgorithm) (hash.Hash, error) {
	switch algorithm {
	case types.ChecksumAlgorithmCrc32:
		return crc32.NewIEEE(), nil
	case types.ChecksumAlgorithmCrc32c:
		return crc32.New(crc32.MakeTable(crc32.Castagnoli)), nil
	case types.ChecksumAlgorithmCrc64nvme:
		return crc64nvme.New(), nil
	}
	r, err := utils.NewHashReader(strings.NewReader(""), "", utils.HashType(strings.ToLower(string(algorithm))))
	if err != nil {
		return nil, s3err.GetAPIError(s3err.ErrInvalidChecksumAlgorithm)
	}
	return &readerHash{r: r}, nil
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.from.read(b.r, p)
	if n > 0 {
		b.bytes += int64(n)
		if b.sum != nil {
			b.sum.Write(p[:n]) //nolint:errcheck // a hash has no errors
		}
	}
	switch {
	case err == nil || err == io.EOF:
	case isS3(err):
		b.err = err
	default: // the connection broke
		b.err = s3err.GetAPIError(s3err.ErrIncompleteBody)
	}
	return n, err
}

func isS3(err error) bool {
	_, ok := err.(s3err.S3Error)
	return ok
}

// check is called when everything was read. It refuses a body that was cut short,
// or that does not match its checksum. (A reader of the library takes a broken
// connection for the end of the body.)
func (b *body) check() (*checksum, error) {
	if b.bytes != b.want {
		return nil, s3err.GetAPIError(s3err.ErrIncompleteBody)
	}
	if b.algorithm == "" {
		return nil, nil
	}
	c := &checksum{Algorithm: b.algorithm, Type: types.ChecksumTypeFullObject}
	if b.trailer != nil {
		c.Value = b.trailer.Checksum()
		return c, nil
	}
	c.Value = base64.StdEncoding.EncodeToString(b.sum.Sum(nil))
	if b.value != "" && c.Value != b.value {
		return nil, s3err.GetChecksumBadDigestErr(b.algorithm)
	}
	return c, nil
}

// readerHash makes a hash from the library's reader, for the algorithms that do not
// need a faster one.
type readerHash struct {
	r *utils.HashReader
}

func (h *readerHash) Write(p []byte) (int, error) {
	h.r.SetReader(strings.NewReader(string(p)))
	return io.ReadFull(h.r, make([]byte, len(p)))
}

func (h *readerHash) Sum(prefix []byte) []byte {
	sum, err := base64.StdEncoding.DecodeString(h.r.Sum())
	if err != nil {
		panic(fmt.Sprintf("s3: the library's checksum %q is not base64", h.r.Sum()))
	}
	return append(prefix, sum...)
}

func (h *readerHash) Reset()         { panic("s3: not used") }
func (h *readerHash) Size() int      { return 0 }
func (h *readerHash) BlockSize() int { return 64 }

// reply returns the checksum in the form of replies. nil means none.
func (c *checksum) reply() s3response.Checksum {
	var r s3response.Checksum
	if c == nil {
		return r
	}
	r.Algorithm, r.Type = c.Algorithm, c.Type
	v := c.Value
	switch c.Algorithm {
	case types.ChecksumAlgorithmCrc32:
		r.CRC32 = &v
	case types.ChecksumAlgorithmCrc32c:
		r.CRC32C = &v
	case types.ChecksumAlgorithmCrc64nvme:
		r.CRC64NVME = &v
	case types.ChecksumAlgorithmSha1:
		r.SHA1 = &v
	case types.ChecksumAlgorithmSha256:
		r.SHA256 = &v
	case types.ChecksumAlgorithmSha512:
		r.SHA512 = &v
	case types.ChecksumAlgorithmMd5:
		r.MD5 = &v
	case types.ChecksumAlgorithmXxhash64:
		r.XXHASH64 = &v
	case types.ChecksumAlgorithmXxhash3:
		r.XXHASH3 = &v
	case types.ChecksumAlgorithmXxhash128:
		r.XXHASH128 = &v
	}
	return r
}
