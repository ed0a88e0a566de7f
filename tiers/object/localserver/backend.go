package localserver

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/valyala/fasthttp"
	versity "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/morainefs/moraine"
	own "github.com/morainefs/moraine/internal/versity"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/object/localstore"
)

// backend implements the interface of the library: one bucket, in a store. Methods
// that are not here answer NotImplemented.
type backend struct {
	own.Plain
	store  *localstore.Store
	bucket string
	made   time.Time
	places *own.Places
}

var _ versity.Backend = (*backend)(nil)

func (b *backend) String() string { return "Moraine's local bucket" }

func str(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

func ptr[T any](v T) *T { return &v }

// nonempty returns nil for an empty string.
func nonempty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func unquote(etag string) string { return strings.Trim(etag, `"`) }
func quoted(etag string) *string { return ptr(`"` + etag + `"`) }

func encodeCRC(crc uint32) *string {
	return ptr(base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc)))
}

// decodeCRC decodes a CRC32C from a header; nil if there is none.
func decodeCRC(s *string) (*uint32, error) {
	if str(s) == "" {
		return nil, nil
	}
	raw, err := base64.StdEncoding.DecodeString(*s)
	if err != nil || len(raw) != 4 {
		return nil, s3err.GetInvalidChecksumHeaderErr("x-amz-checksum-crc32c")
	}
	return ptr(binary.BigEndian.Uint32(raw)), nil
}

// answer turns an error of the store into an S3 error.
func answer(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(s3err.S3Error); ok {
		return err
	}
	var said s3err.S3Error
	if errors.As(err, &said) {
		return said
	}
	switch moraine.KindOf(err) {
	case moraine.NotFound:
		return s3err.GetAPIError(s3err.ErrNoSuchKey)
	case moraine.Conflict:
		return s3err.GetPreconditionFailedErr(s3err.ConditionIfMatch)
	case moraine.Corrupt:
		return s3err.GetChecksumBadDigestErr(types.ChecksumAlgorithmCrc32c)
	case moraine.InvalidArgument:
		return s3err.GetAPIError(s3err.ErrInvalidRequest)
	case moraine.NoSpace:
		return s3err.GetAPIError(s3err.ErrNoSpaceLeftOnDevice)
	case moraine.TooLarge:
		return s3err.GetAPIError(s3err.ErrEntityTooLarge)
	}
	return s3err.APIError{Code: "InternalError", Description: err.Error(), HTTPStatusCode: 500}
}

// damaged is answer for a read of an object whose record may be damaged.
func damaged(err error) error {
	if moraine.KindOf(err) == moraine.Corrupt {
		return s3err.APIError{Code: "BadDigest", HTTPStatusCode: http.StatusBadRequest,
			Description: "the object is damaged: put it again, or delete it (" + err.Error() + ")"}
	}
	return answer(err)
}

// upload is answer for a missing upload.
func upload(id string, err error) error {
	if moraine.KindOf(err) == moraine.NotFound {
		return s3err.GetNoSuchUploadErr(id)
	}
	return answer(err)
}

// has fails if the bucket is not the one that this server has.
func (b *backend) has(bucket string) error {
	if bucket != b.bucket {
		return s3err.GetBucketErr(s3err.ErrNoSuchBucket, bucket)
	}
	return nil
}

func condition(ifMatch, ifNoneMatch *string) (c localstore.Condition, err error) {
	if str(ifNoneMatch) != "" {
		if unquote(*ifNoneMatch) != "*" || str(ifMatch) != "" {
			return c, s3err.GetNotImplementedErr("If-None-Match", s3err.NmpAdditionalMessageIfNoneMatch)
		}
		c.Free = true
	}
	c.ETag = unquote(str(ifMatch))
	return c, nil
}

// whole fails a body that ends before its length. The library takes a broken
// connection for the end of the body.
type whole struct {
	r    io.Reader
	left int64
}

func body(r io.Reader, length *int64) io.Reader {
	if r == nil {
		r = strings.NewReader("")
	}
	if length == nil {
		return r
	}
	return &whole{r, *length}
}

// Read implements io.Reader.
func (w *whole) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	w.left -= int64(n)
	if err == io.EOF && w.left != 0 || err == nil && w.left < 0 {
		return n, s3err.GetAPIError(s3err.ErrIncompleteBody)
	}
	return n, err
}

// headers are the request headers that a record keeps.
func headers(contentType, encoding, disposition, language, cache, expires *string) map[string]string {
	h := map[string]string{}
	for name, v := range map[string]*string{"type": contentType, "encoding": encoding, "disposition": disposition,
		"language": language, "cache": cache, "expires": expires} {
		if str(v) != "" {
			h[name] = *v
		}
	}
	return h
}

// PutObject stores an object.
func (b *backend) PutObject(rc context.Context, in s3response.PutObjectInput) (out s3response.PutObjectOutput, err error) {
	b.places.Proved(rc)
	if err := b.has(str(in.Bucket)); err != nil {
		return out, err
	}
	want, err := decodeCRC(in.ChecksumCRC32C)
	if err != nil {
		return out, err
	}
	cond, err := condition(in.IfMatch, in.IfNoneMatch)
	if err != nil {
		return out, err
	}
	r, err := b.store.Put(str(in.Key), localstore.Record{Meta: in.Metadata,
		Headers: headers(in.ContentType, in.ContentEncoding, in.ContentDisposition, in.ContentLanguage, in.CacheControl, in.Expires)},
		body(in.Body, in.ContentLength), want, cond)
	if err != nil {
		return out, answer(err)
	}
	return s3response.PutObjectOutput{ETag: *quoted(r.ETag), Size: &r.Size, ChecksumCRC32C: encodeCRC(r.CRC), ChecksumType: types.ChecksumTypeFullObject}, nil
}

// check evaluates the conditions of a read on the object.
func check(r localstore.Record, ifMatch, ifNoneMatch *string, modified, unmodified *time.Time) error {
	return versity.EvaluatePreconditions(r.ETag, time.Unix(0, r.Modified).Truncate(time.Second),
		versity.PreConditions{IfMatch: ifMatch, IfNoneMatch: ifNoneMatch, IfModSince: modified, IfUnmodeSince: unmodified})
}

// HeadObject describes an object.
func (b *backend) HeadObject(_ context.Context, in *s3.HeadObjectInput) (*s3.HeadObjectOutput, error) {
	if err := b.has(str(in.Bucket)); err != nil {
		return nil, err
	}
	r, err := b.store.Head(str(in.Key))
	if err != nil {
		return nil, damaged(err)
	}
	if v := str(in.VersionId); v != "" && v != "null" {
		return nil, s3err.GetInvalidArgumentErr(s3err.InvalidArgVersionId, v)
	}
	if err := check(r, in.IfMatch, in.IfNoneMatch, in.IfModifiedSince, in.IfUnmodifiedSince); err != nil {
		return nil, err
	}
	out := &s3.HeadObjectOutput{ContentLength: &r.Size, ETag: quoted(r.ETag), LastModified: ptr(time.Unix(0, r.Modified).UTC()), Metadata: r.Meta,
		AcceptRanges: ptr("bytes"), ContentType: nonempty(r.Headers["type"]), ContentEncoding: nonempty(r.Headers["encoding"]),
		ContentDisposition: nonempty(r.Headers["disposition"]), ContentLanguage: nonempty(r.Headers["language"]),
		CacheControl: nonempty(r.Headers["cache"]), ExpiresString: nonempty(r.Headers["expires"]), StorageClass: types.StorageClassStandard}
	if in.ChecksumMode == types.ChecksumModeEnabled {
		out.ChecksumCRC32C, out.ChecksumType = encodeCRC(r.CRC), types.ChecksumTypeFullObject
	}
	return out, nil
}

// section is a range of an object that is being sent.
type section struct {
	*io.SectionReader
	file vfs.File
}

func (s *section) Close() error { return s.file.Close() }

// GetObject streams an object, or a range of it.
func (b *backend) GetObject(rc context.Context, in *s3.GetObjectInput) (*s3.GetObjectOutput, error) {
	b.places.Proved(rc)
	if err := b.has(str(in.Bucket)); err != nil {
		return nil, err
	}
	if v := str(in.VersionId); v != "" && v != "null" {
		return nil, s3err.GetInvalidArgumentErr(s3err.InvalidArgVersionId, v)
	}
	r, f, err := b.store.Get(str(in.Key))
	if err != nil {
		return nil, damaged(err)
	}
	err = check(r, in.IfMatch, in.IfNoneMatch, in.IfModifiedSince, in.IfUnmodifiedSince)
	var off, n int64
	var partial bool
	if err == nil {
		off, n, partial, err = versity.ParseObjectRange(r.Size, str(in.Range))
	}
	if err != nil {
		_ = f.Close() // closes a file that was only read
		return nil, answer(err)
	}
	out := &s3.GetObjectOutput{Body: &section{io.NewSectionReader(f, off, n), f}, ContentLength: &n, ETag: quoted(r.ETag),
		LastModified: ptr(time.Unix(0, r.Modified).UTC()), Metadata: r.Meta, AcceptRanges: ptr("bytes"), ContentType: nonempty(r.Headers["type"]),
		ContentEncoding: nonempty(r.Headers["encoding"]), ContentDisposition: nonempty(r.Headers["disposition"]),
		ContentLanguage: nonempty(r.Headers["language"]), CacheControl: nonempty(r.Headers["cache"]), ExpiresString: nonempty(r.Headers["expires"]),
		StorageClass: types.StorageClassStandard}
	if partial {
		out.ContentRange = ptr(rangeHeader(off, n, r.Size))
	} else if in.ChecksumMode == types.ChecksumModeEnabled {
		out.ChecksumCRC32C, out.ChecksumType = encodeCRC(r.CRC), types.ChecksumTypeFullObject
	}
	return out, nil
}

// DeleteObject removes an object.
func (b *backend) DeleteObject(_ context.Context, in *s3.DeleteObjectInput) (*s3.DeleteObjectOutput, error) {
	if err := b.has(str(in.Bucket)); err != nil {
		return nil, err
	}
	if in.IfMatchSize != nil || in.IfMatchLastModifiedTime != nil || str(in.IfMatch) == "*" {
		return nil, s3err.GetAPIError(s3err.ErrNotImplemented)
	}
	return &s3.DeleteObjectOutput{}, answer(b.store.Delete(str(in.Key), unquote(str(in.IfMatch))))
}

// DeleteObjects removes objects, each by itself.
func (b *backend) DeleteObjects(rc context.Context, in *s3.DeleteObjectsInput) (out s3response.DeleteResult, err error) {
	for _, o := range in.Delete.Objects {
		_, err := b.DeleteObject(rc, &s3.DeleteObjectInput{Bucket: in.Bucket, Key: o.Key, IfMatch: o.ETag})
		if err != nil {
			out.Error = append(out.Error, s3err.ObjectDeleteError(o.Key, o.VersionId, err))
		} else {
			out.Deleted = append(out.Deleted, types.DeletedObject{Key: o.Key})
		}
	}
	return out, nil
}

// source opens the source of a copy.
func (b *backend) source(header string, ifMatch, ifNoneMatch *string, modified, unmodified *time.Time) (localstore.Record, vfs.File, error) {
	bucket, key, version, err := versity.ParseCopySource(header)
	if err == nil {
		err = b.has(bucket)
	}
	if err == nil && version != "" && version != "null" {
		err = s3err.GetInvalidArgumentErr(s3err.InvalidArgVersionId, version)
	}
	if err != nil {
		return localstore.Record{}, nil, err
	}
	r, f, err := b.store.Get(key)
	if err != nil {
		return r, nil, damaged(err)
	}
	if err := check(r, ifMatch, ifNoneMatch, modified, unmodified); err != nil {
		if errors.Is(err, s3err.GetAPIError(s3err.ErrNotModified)) {
			err = s3err.GetPreconditionFailedErr(s3err.ConditionIfNoneMatch)
		}
		_ = f.Close()
		return r, nil, err
	}
	return r, f, nil
}

// CopyObject makes an object from the bytes of another.
func (b *backend) CopyObject(_ context.Context, in s3response.CopyObjectInput) (out s3response.CopyObjectOutput, err error) {
	if err := b.has(str(in.Bucket)); err != nil {
		return out, err
	}
	src, f, err := b.source(str(in.CopySource), in.CopySourceIfMatch, in.CopySourceIfNoneMatch, in.CopySourceIfModifiedSince, in.CopySourceIfUnmodifiedSince)
	if err != nil {
		return out, err
	}
	defer f.Close()
	about := localstore.Record{Meta: src.Meta, Headers: src.Headers}
	if in.MetadataDirective == types.MetadataDirectiveReplace {
		about = localstore.Record{Meta: in.Metadata,
			Headers: headers(in.ContentType, in.ContentEncoding, in.ContentDisposition, in.ContentLanguage, in.CacheControl, in.Expires)}
	}
	r, err := b.store.Put(str(in.Key), about, io.NewSectionReader(f, 0, src.Size), &src.CRC, localstore.Condition{})
	if err != nil {
		return out, answer(err)
	}
	return s3response.CopyObjectOutput{CopyObjectResult: &s3response.CopyObjectResult{ETag: quoted(r.ETag), LastModified: ptr(time.Unix(0, r.Modified).UTC())}}, nil
}

// page is one page of a listing.
type page struct {
	objects  []localstore.Record
	prefixes []string
	next     string
}

func (b *backend) list(prefix, delimiter, after string, max int) (p page) {
	last := ""
	for _, r := range b.store.List(prefix) {
		key, folded := r.Key, false
		if i := strings.Index(key[len(prefix):], delimiter); delimiter != "" && i >= 0 {
			key, folded = key[:len(prefix)+i+len(delimiter)], true
		}
		if key <= after || folded && (key == last || strings.HasPrefix(after, key)) {
			continue
		}
		if len(p.objects)+len(p.prefixes) >= max {
			if max > 0 {
				p.next = last
			}
			return p
		}
		if last = key; folded {
			p.prefixes = append(p.prefixes, key)
		} else {
			p.objects = append(p.objects, r)
		}
	}
	return p
}

// escaper returns how a reply encodes names.
func escaper(rc context.Context) (func(string) string, types.EncodingType) {
	if r, ok := rc.(*fasthttp.RequestCtx); ok && string(r.QueryArgs().Peek("encoding-type")) == string(types.EncodingTypeUrl) {
		return func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "%2F", "/") }, types.EncodingTypeUrl
	}
	return func(s string) string { return s }, ""
}

func (p *page) reply(escape func(string) string) (contents []s3response.Object, prefixes []types.CommonPrefix) {
	for _, r := range p.objects {
		contents = append(contents, s3response.Object{Key: ptr(escape(r.Key)), ETag: quoted(r.ETag), Size: &r.Size,
			LastModified: ptr(time.Unix(0, r.Modified).UTC()), StorageClass: types.ObjectStorageClassStandard})
	}
	for _, s := range p.prefixes {
		prefixes = append(prefixes, types.CommonPrefix{Prefix: ptr(escape(s))})
	}
	return contents, prefixes
}

// maxListed is the most items of one page.
const maxListed = 1000

func limit(max *int32) *int32 {
	if max == nil || *max > maxListed {
		return ptr(int32(maxListed))
	}
	return max
}

// ListObjects lists objects.
func (b *backend) ListObjects(rc context.Context, in *s3.ListObjectsInput) (out s3response.ListObjectsResult, err error) {
	if err := b.has(str(in.Bucket)); err != nil {
		return out, err
	}
	max := limit(in.MaxKeys)
	p := b.list(str(in.Prefix), str(in.Delimiter), str(in.Marker), int(*max))
	escape, encoding := escaper(rc)
	out = s3response.ListObjectsResult{Name: in.Bucket, Prefix: ptr(escape(str(in.Prefix))), Marker: ptr(escape(str(in.Marker))),
		Delimiter: nonempty(escape(str(in.Delimiter))), MaxKeys: max, IsTruncated: ptr(p.next != ""), NextMarker: nonempty(escape(p.next)), EncodingType: encoding}
	out.Contents, out.CommonPrefixes = p.reply(escape)
	return out, nil
}

// ListObjectsV2 lists objects.
func (b *backend) ListObjectsV2(rc context.Context, in *s3.ListObjectsV2Input) (out s3response.ListObjectsV2Result, err error) {
	if err := b.has(str(in.Bucket)); err != nil {
		return out, err
	}
	after := str(in.StartAfter)
	if t := str(in.ContinuationToken); t != "" {
		key, err := base64.RawURLEncoding.DecodeString(t)
		if err != nil {
			return out, s3err.GetAPIError(s3err.ErrInvalidRequest)
		}
		after = string(key)
	}
	max := limit(in.MaxKeys)
	p := b.list(str(in.Prefix), str(in.Delimiter), after, int(*max))
	escape, encoding := escaper(rc)
	out = s3response.ListObjectsV2Result{Name: in.Bucket, Prefix: ptr(escape(str(in.Prefix))), StartAfter: nonempty(escape(str(in.StartAfter))),
		Delimiter: nonempty(escape(str(in.Delimiter))), ContinuationToken: nonempty(str(in.ContinuationToken)),
		NextContinuationToken: nonempty(base64.RawURLEncoding.EncodeToString([]byte(p.next))), KeyCount: ptr(int32(len(p.objects) + len(p.prefixes))),
		MaxKeys: max, IsTruncated: ptr(p.next != ""), EncodingType: encoding}
	out.Contents, out.CommonPrefixes = p.reply(escape)
	return out, nil
}
