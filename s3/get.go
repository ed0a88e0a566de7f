package s3

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	versity "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/morainefs/moraine/client"
)

// wholeRead is the longest answer that is read completely before it begins: a
// failure is then an error, and not a broken connection.
const wholeRead = 1 << 20

// reading is the common part of GET and HEAD.
type reading struct {
	rangeHeader string
	part        *int32
	mode        types.ChecksumMode
	version     string
	conditions  versity.PreConditions
}

// conditions are those of a request. The library treats an object changed in the
// very second of If-Unmodified-Since as changed later. Adding a nanosecond corrects
// that.
func conditions(match, noneMatch *string, modified, unmodified *time.Time) versity.PreConditions {
	if unmodified != nil {
		t := unmodified.Add(time.Nanosecond)
		unmodified = &t
	}
	return versity.PreConditions{IfMatch: match, IfNoneMatch: noneMatch, IfModSince: modified, IfUnmodeSince: unmodified}
}

// section is the requested part of an object.
type section struct {
	off, n       int64
	contentRange *string
	parts        *int32
	sums         s3response.Checksum
}

// GetObject streams an object, or a range of it.
func (b *backend) GetObject(rc context.Context, in *s3.GetObjectInput) (*s3.GetObjectOutput, error) {
	ctx, cancel := context.WithCancel(b.life)
	out, err := b.objects.get(ctx, in)
	if err != nil {
		cancel()
		return nil, b.requests.answer(rc, "GetObject", err)
	}
	out.Body = &sentBody{ReadCloser: out.Body, cancel: cancel, metrics: b.objects.metrics, to: b.requests.transferOf(rc)}
	return out, nil
}

func (objs *objects) get(ctx context.Context, in *s3.GetObjectInput) (*s3.GetObjectOutput, error) {
	q := reading{rangeHeader: str(in.Range), part: in.PartNumber, mode: in.ChecksumMode, version: str(in.VersionId),
		conditions: conditions(in.IfMatch, in.IfNoneMatch, in.IfModifiedSince, in.IfUnmodifiedSince)}
	k, err := parseKey(str(in.Bucket), str(in.Key))
	if err != nil {
		return nil, err
	}
	o, r, err := objs.tree.open(ctx, k)
	if err != nil {
		return nil, err
	}
	s, err := o.section(q)
	var content io.ReadCloser
	if err == nil {
		content, err = read(ctx, r, s)
	}
	if err != nil {
		if r != nil {
			_ = r.Close()
		}
		return nil, err
	}
	tag, media, mtime, rec := etag(o.attr), o.mediaType(), o.mtime(), &o.record
	return &s3.GetObjectOutput{
		Body: content, AcceptRanges: ptr("bytes"), ContentLength: &s.n, ContentRange: s.contentRange, PartsCount: s.parts,
		ETag: &tag, LastModified: &mtime, ContentType: &media, ContentEncoding: ptr(rec.ContentEncoding), ContentDisposition: ptr(rec.ContentDisposition),
		ContentLanguage: ptr(rec.ContentLanguage), CacheControl: ptr(rec.CacheControl), ExpiresString: ptr(rec.Expires),
		WebsiteRedirectLocation: ptr(rec.Redirect), Metadata: rec.Metadata, TagCount: rec.tagCount(), StorageClass: types.StorageClassStandard,
		ChecksumType: s.sums.Type, ChecksumCRC32: s.sums.CRC32, ChecksumCRC32C: s.sums.CRC32C, ChecksumCRC64NVME: s.sums.CRC64NVME,
		ChecksumSHA1: s.sums.SHA1, ChecksumSHA256: s.sums.SHA256, ChecksumSHA512: s.sums.SHA512, ChecksumMD5: s.sums.MD5,
		ChecksumXXHASH64: s.sums.XXHASH64, ChecksumXXHASH3: s.sums.XXHASH3, ChecksumXXHASH128: s.sums.XXHASH128,
	}, nil
}

// HeadObject describes an object.
func (b *backend) HeadObject(rc context.Context, in *s3.HeadObjectInput) (*s3.HeadObjectOutput, error) {
	out, err := b.objects.head(b.life, in)
	return out, b.requests.answer(rc, "HeadObject", err)
}

func (objs *objects) head(ctx context.Context, in *s3.HeadObjectInput) (*s3.HeadObjectOutput, error) {
	q := reading{rangeHeader: str(in.Range), part: in.PartNumber, mode: in.ChecksumMode, version: str(in.VersionId),
		conditions: conditions(in.IfMatch, in.IfNoneMatch, in.IfModifiedSince, in.IfUnmodifiedSince)}
	k, err := parseKey(str(in.Bucket), str(in.Key))
	if err != nil {
		return nil, err
	}
	o, err := objs.tree.find(ctx, k)
	if err != nil {
		return nil, err
	}
	s, err := o.section(q)
	if err != nil {
		return nil, err
	}
	tag, media, mtime, rec := etag(o.attr), o.mediaType(), o.mtime(), &o.record
	return &s3.HeadObjectOutput{
		AcceptRanges: ptr("bytes"), ContentLength: &s.n, ContentRange: s.contentRange, PartsCount: s.parts,
		ETag: &tag, LastModified: &mtime, ContentType: &media, ContentEncoding: ptr(rec.ContentEncoding), ContentDisposition: ptr(rec.ContentDisposition),
		ContentLanguage: ptr(rec.ContentLanguage), CacheControl: ptr(rec.CacheControl), ExpiresString: ptr(rec.Expires),
		WebsiteRedirectLocation: ptr(rec.Redirect), Metadata: rec.Metadata, TagCount: rec.tagCount(), StorageClass: types.StorageClassStandard,
		ChecksumType: s.sums.Type, ChecksumCRC32: s.sums.CRC32, ChecksumCRC32C: s.sums.CRC32C, ChecksumCRC64NVME: s.sums.CRC64NVME,
		ChecksumSHA1: s.sums.SHA1, ChecksumSHA256: s.sums.SHA256, ChecksumSHA512: s.sums.SHA512, ChecksumMD5: s.sums.MD5,
		ChecksumXXHASH64: s.sums.XXHASH64, ChecksumXXHASH3: s.sums.XXHASH3, ChecksumXXHASH128: s.sums.XXHASH128,
	}, nil
}

// GetObjectAttributes describes an object in a document.
func (b *backend) GetObjectAttributes(rc context.Context, in *s3.GetObjectAttributesInput) (s3response.GetObjectAttributesResponse, error) {
	out, err := b.objects.attributes(b.life, in)
	return out, b.requests.answer(rc, "GetObjectAttributes", err)
}

func (objs *objects) attributes(ctx context.Context, in *s3.GetObjectAttributesInput) (out s3response.GetObjectAttributesResponse, err error) {
	k, err := parseKey(str(in.Bucket), str(in.Key))
	if err != nil {
		return out, err
	}
	o, err := objs.tree.find(ctx, k)
	if err != nil {
		return out, err
	}
	if _, err := o.section(reading{version: str(in.VersionId)}); err != nil {
		return out, err
	}
	tag, size, mtime, c := unquote(etag(o.attr)), o.size(), o.mtime(), o.checksums()
	out = s3response.GetObjectAttributesResponse{ETag: &tag, ObjectSize: &size, LastModified: &mtime, StorageClass: types.StorageClassStandard}
	if c.Algorithm != "" {
		out.Checksum = &types.Checksum{ChecksumType: c.Type, ChecksumCRC32: c.CRC32, ChecksumCRC32C: c.CRC32C,
			ChecksumCRC64NVME: c.CRC64NVME, ChecksumSHA1: c.SHA1, ChecksumSHA256: c.SHA256}
	}
	return out, nil
}

func (o *object) mtime() time.Time { return o.attr.ModTime().UTC() }

// size is the length of the content, 0 for a directory.
func (o *object) size() int64 {
	if o.isDir() {
		return 0
	}
	return o.attr.Size()
}

// section evaluates the conditions of a request, and returns the requested part of
// the object.
func (o *object) section(q reading) (section, error) {
	if q.version != "" && q.version != "null" {
		return section{}, s3err.GetInvalidArgumentErr(s3err.InvalidArgVersionId, q.version)
	}
	// HTTP dates have a resolution of seconds.
	if err := versity.EvaluatePreconditions(etag(o.attr), o.mtime().Truncate(time.Second), q.conditions); err != nil {
		return section{}, err
	}
	size := o.size()
	if q.part != nil {
		return o.partSection(int(*q.part))
	}
	off, n, partial, err := versity.ParseObjectRange(size, q.rangeHeader)
	if err != nil {
		return section{}, err
	}
	s := section{off: off, n: n}
	if partial {
		s.contentRange = ptr(fmt.Sprintf("bytes %d-%d/%d", off, off+n-1, size))
	} else if q.mode == types.ChecksumModeEnabled {
		s.sums = o.checksums()
	}
	return s, nil
}

// partSection is the part with that number of a multipart upload. An object that
// was put at once, or changed since, is one part.
func (o *object) partSection(number int) (section, error) {
	parts := o.record.Parts
	if !o.current() || len(parts) == 0 {
		if number > 1 {
			return section{}, s3err.GetInvalidPartNumberRangeErr(1, int32(number))
		}
		parts = []partRun{{Bytes: o.size(), Count: 1}}
	}
	var s section
	total := int32(0)
	for _, run := range parts {
		in := min(run.Count, max(0, number-1-int(total)))
		s.off += int64(in) * run.Bytes
		if total += int32(run.Count); s.parts == nil && int(total) >= number {
			s.n, s.parts = run.Bytes, &total
		}
	}
	if s.parts == nil {
		return section{}, s3err.GetInvalidPartNumberRangeErr(total, int32(number))
	}
	if s.n > 0 {
		s.contentRange = ptr(fmt.Sprintf("bytes %d-%d/%d", s.off, s.off+s.n-1, o.size()))
	}
	if !o.current() {
		s.parts = nil
	}
	return s, nil
}

func (r *record) tagCount() *int32 {
	if len(r.Tags) == 0 {
		return nil
	}
	n := int32(len(r.Tags))
	return &n
}

// read returns a section's bytes; the Reader ends after them. It is nil for a
// directory.
func read(ctx context.Context, r *client.Reader, s section) (io.ReadCloser, error) {
	switch {
	case r == nil:
		return io.NopCloser(bytes.NewReader(nil)), nil
	case s.n > wholeRead:
		return r.NewRangeStream(ctx, s.off, s.n), nil
	}
	data := make([]byte, s.n)
	if err := r.ReadRange(ctx, data, s.off); err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(data)), r.Close()
}

// sentBody is a body that is being sent to a socket. It passes on io.WriterTo, with
// which the library sends without a copy. Closing it ends the request's context.
type sentBody struct {
	io.ReadCloser
	cancel  context.CancelFunc
	metrics *Metrics
	to      transfer
}

// Read implements io.Reader.
func (s *sentBody) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.metrics.GetBytes.Add(float64(n))
	return n, err
}

// WriteTo implements io.WriterTo.
func (s *sentBody) WriteTo(w io.Writer) (int64, error) {
	n, err := io.Copy(transferWriter{s.to, w}, s.ReadCloser)
	s.metrics.GetBytes.Add(float64(n))
	return n, err
}

// Close implements io.Closer.
func (s *sentBody) Close() error {
	s.cancel()
	return s.ReadCloser.Close()
}
