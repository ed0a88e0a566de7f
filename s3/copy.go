package s3

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/valyala/fasthttp"
	versity "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/morainefs/moraine/client"
)

// CopyObject makes an object that shares the bytes of another; it moves none. It
// answers when the bytes are at the requested level.
func (b *backend) CopyObject(rc context.Context, in s3response.CopyObjectInput) (s3response.CopyObjectOutput, error) {
	level, err := b.requests.levelOf(rc)
	var attr client.Attr
	if err == nil {
		attr, err = b.objects.copy(b.life, in, conditionOf(rc))
	}
	if err == nil {
		err = b.objects.reach(b.life, attr, level)
	}
	if err != nil {
		return s3response.CopyObjectOutput{}, b.requests.answer(rc, "CopyObject", err)
	}
	tag, o := etag(attr), object{attr: attr}
	mtime := o.mtime()
	return s3response.CopyObjectOutput{CopyObjectResult: &s3response.CopyObjectResult{ETag: &tag, LastModified: &mtime}}, nil
}

// conditionOf is the condition of a copy on the object it replaces, which the
// library does not pass on.
func conditionOf(rc context.Context) (c condition) {
	r, ok := rc.(*fasthttp.RequestCtx)
	if !ok {
		return c
	}
	return condition{ifMatch: ptr(unquote(string(r.Request.Header.Peek("If-Match")))), ifNoneMatch: ptr(string(r.Request.Header.Peek("If-None-Match")))}
}

func (objs *objects) copy(ctx context.Context, in s3response.CopyObjectInput, cond condition) (client.Attr, error) {
	k, err := parseKey(str(in.Bucket), str(in.Key))
	if err != nil {
		return client.Attr{}, err
	}
	if in.ObjectLockMode != "" || in.ObjectLockLegalHoldStatus != "" {
		return client.Attr{}, s3err.GetAPIError(s3err.ErrNotImplemented)
	}
	src, from, err := objs.copySource(ctx, str(in.CopySource), conditions(in.CopySourceIfMatch, in.CopySourceIfNoneMatch, in.CopySourceIfModifiedSince, in.CopySourceIfUnmodifiedSince))
	if err != nil {
		return client.Attr{}, err
	}
	if from == k && in.MetadataDirective != types.MetadataDirectiveReplace && in.TaggingDirective != types.TaggingDirectiveReplace {
		return client.Attr{}, s3err.GetAPIError(s3err.ErrInvalidCopyDest)
	}
	r, err := recordOfCopy(in, &src.record)
	if err != nil {
		return client.Attr{}, err
	}
	if cond.any() && k.isDir() {
		return client.Attr{}, notKept("a condition on a key that ends in a slash")
	}
	if err := objs.checkPut(ctx, k, cond); err != nil {
		return client.Attr{}, err
	}
	if k.isDir() || src.isDir() {
		if src.size() != 0 {
			return client.Attr{}, s3err.GetAPIError(s3err.ErrDirectoryObjectContainsData)
		}
		if k.isDir() {
			return objs.putDir(ctx, k, &body{r: eof{}}, r)
		}
	}
	all := whole(src.attr)
	if src.isDir() {
		all = nil
	}
	known := src.current()
	attr, _, err := objs.assemble(ctx, k, all, 0, r, cond)
	if err == nil && known {
		r.Checksum, r.Parts = src.record.Checksum, src.record.Parts
		objs.settle(ctx, attr, r)
	}
	return attr, err
}

// eof is an empty body.
type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// whole returns the range of a whole file, at the generation in a.
func whole(a client.Attr) []client.InodeRange {
	if a.Size() == 0 {
		return nil
	}
	return []client.InodeRange{{Inode: a.Inode(), Generation: a.Generation(), Length: a.Size()}}
}

// recordOfCopy is the record of a copy: that of the source, or the one in the
// request.
func recordOfCopy(in s3response.CopyObjectInput, src *record) (*record, error) {
	r := *src
	r.Generation, r.Checksum, r.Parts, r.Upload, r.Directory = 0, nil, nil, "", ""
	if in.MetadataDirective == types.MetadataDirectiveReplace {
		r = record{ContentType: str(in.ContentType), ContentEncoding: encodingOf(in.ContentEncoding), ContentDisposition: str(in.ContentDisposition),
			ContentLanguage: str(in.ContentLanguage), CacheControl: str(in.CacheControl), Expires: str(in.Expires),
			Redirect: str(in.WebsiteRedirectLocation), Metadata: in.Metadata, Tags: src.Tags}
	}
	if in.TaggingDirective == types.TaggingDirectiveReplace {
		var err error
		if r.Tags, err = versity.ParseObjectTags(str(in.Tagging)); err != nil {
			return nil, err
		}
	}
	return &r, nil
}

// copySource finds the source of a copy.
func (objs *objects) copySource(ctx context.Context, header string, cond versity.PreConditions) (*object, objectKey, error) {
	bucket, key, version, err := versity.ParseCopySource(header)
	if err != nil {
		return nil, objectKey{}, err
	}
	if version != "" && version != "null" {
		return nil, objectKey{}, s3err.GetInvalidArgumentErr(s3err.InvalidArgVersionId, version)
	}
	if _, err := objs.tree.findBucket(ctx, bucket); err != nil {
		return nil, objectKey{}, err
	}
	k, err := parseKey(bucket, key)
	if err != nil {
		return nil, k, err
	}
	o, err := objs.tree.find(ctx, k)
	if err != nil {
		return nil, k, err
	}
	err = versity.EvaluatePreconditions(etag(o.attr), o.mtime().Truncate(time.Second), cond)
	if errors.Is(err, s3err.GetAPIError(s3err.ErrNotModified)) {
		err = s3err.GetPreconditionFailedErr(s3err.ConditionIfNoneMatch)
	}
	return o, k, err
}

// UploadPartCopy makes a part from a range of an object, whose bytes it shares.
func (b *backend) UploadPartCopy(rc context.Context, in *s3.UploadPartCopyInput) (s3response.CopyPartResult, error) {
	level, err := b.requests.levelOf(rc)
	var attr client.Attr
	if err == nil {
		attr, err = b.uploads.copyPart(b.life, in)
	}
	if err == nil {
		err = b.objects.reach(b.life, attr, level)
	}
	if err != nil {
		return s3response.CopyPartResult{}, b.requests.answer(rc, "UploadPartCopy", err)
	}
	tag, o := etag(attr), object{attr: attr}
	return s3response.CopyPartResult{ETag: &tag, LastModified: o.mtime()}, nil
}

func (us *uploads) copyPart(ctx context.Context, in *s3.UploadPartCopyInput) (client.Attr, error) {
	u, err := us.find(ctx, in.Bucket, in.Key, in.UploadId)
	if err != nil {
		return client.Attr{}, err
	}
	name, err := us.partPath(u, in.PartNumber)
	if err != nil {
		return client.Attr{}, err
	}
	src, _, err := us.objects.copySource(ctx, str(in.CopySource), conditions(in.CopySourceIfMatch, in.CopySourceIfNoneMatch, in.CopySourceIfModifiedSince, in.CopySourceIfUnmodifiedSince))
	if err != nil {
		return client.Attr{}, err
	}
	off, n, err := versity.ParseCopySourceRange(src.size(), str(in.CopySourceRange))
	if err != nil {
		return client.Attr{}, err
	}
	n = min(n, src.size()-off) // for an open range the library passes one byte too many
	ranges := whole(src.attr)
	if n > 0 {
		ranges[0].Offset, ranges[0].Length = off, n
	} else {
		ranges = nil
	}
	attr, err := us.tree.cl.Concat(ctx, name, ranges, client.CreateOptions{Replace: true})
	return attr, goneUpload(err, u)
}
