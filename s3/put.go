package s3

import (
	"context"
	"errors"
	"io"
	"path"
	"strings"

	"github.com/valyala/fasthttp"
	versity "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// PutObject stores an object. When it returns nil, the whole object is visible and at
// the requested level: nvme, which is durable, or memory. On error nothing of it is
// visible. After an error that says to try again, the whole object may still appear.
func (b *backend) PutObject(rc context.Context, in s3response.PutObjectInput) (s3response.PutObjectOutput, error) {
	endAfterChunked(rc)
	if err := refusedForm(rc); err != nil {
		return s3response.PutObjectOutput{}, err
	}
	level, err := b.requests.levelOf(rc)
	if err != nil {
		return s3response.PutObjectOutput{}, b.requests.answer(rc, "PutObject", err)
	}
	out, err := b.objects.put(b.life, b.requests.transferOf(rc), in, level)
	return out, b.requests.answer(rc, "PutObject", err)
}

// endAfterChunked ends the connection after a request whose body came in HTTP's own
// chunks. The library's reader of signed chunks stops before the last HTTP chunk,
// and the rest would be taken for the next request. (The minio client sends empty
// objects this way; larger ones have a length.)
func endAfterChunked(rc context.Context) {
	if r, ok := rc.(*fasthttp.RequestCtx); ok && r.Request.Header.ContentLength() < 0 {
		r.Response.Header.SetConnectionClose()
	}
}

func (objs *objects) put(ctx context.Context, from transfer, in s3response.PutObjectInput, level moraine.Level) (out s3response.PutObjectOutput, err error) {
	k, err := parseKey(str(in.Bucket), str(in.Key))
	if err != nil {
		return out, err
	}
	if in.ObjectLockMode != "" || in.ObjectLockLegalHoldStatus != "" {
		return out, s3err.GetAPIError(s3err.ErrNotImplemented)
	}
	r, err := recordOfPut(in)
	if err != nil {
		return out, err
	}
	cond := condition{ifMatch: in.IfMatch, ifNoneMatch: in.IfNoneMatch}
	if cond.any() && k.isDir() {
		return out, notKept("a condition on a key that ends in a slash")
	}
	if err := objs.checkPut(ctx, k, cond); err != nil {
		return out, err
	}
	body, err := newBody(in.Body, in.ContentLength, in.ChecksumAlgorithm, sumsOf(in.ChecksumCRC32, in.ChecksumCRC32C, in.ChecksumSHA1,
		in.ChecksumSHA256, in.ChecksumCRC64NVME, in.ChecksumSHA512, in.ChecksumMD5, in.ChecksumXXHASH64, in.ChecksumXXHASH3, in.ChecksumXXHASH128))
	if err != nil {
		return out, err
	}
	body.from = from
	var attr client.Attr
	if k.isDir() {
		attr, err = objs.putDir(ctx, k, body, r)
	} else {
		attr, err = objs.putFile(ctx, k, body, r, cond, level)
	}
	if err != nil {
		objs.tree.prune(ctx, k.bucket, path.Dir(path.Clean(k.key)))
		return out, err
	}
	c := r.Checksum.reply()
	size := body.bytes
	return s3response.PutObjectOutput{
		ETag: etag(attr), Size: &size, ChecksumType: c.Type, ChecksumCRC32: c.CRC32, ChecksumCRC32C: c.CRC32C,
		ChecksumCRC64NVME: c.CRC64NVME, ChecksumSHA1: c.SHA1, ChecksumSHA256: c.SHA256, ChecksumSHA512: c.SHA512, ChecksumMD5: c.MD5,
		ChecksumXXHASH64: c.XXHASH64, ChecksumXXHASH3: c.XXHASH3, ChecksumXXHASH128: c.XXHASH128,
	}, nil
}

func recordOfPut(in s3response.PutObjectInput) (*record, error) {
	tags, err := versity.ParseObjectTags(str(in.Tagging))
	if err != nil {
		return nil, err
	}
	return &record{ContentType: str(in.ContentType), ContentEncoding: encodingOf(in.ContentEncoding), ContentDisposition: str(in.ContentDisposition),
		ContentLanguage: str(in.ContentLanguage), CacheControl: str(in.CacheControl), Expires: str(in.Expires),
		Redirect: str(in.WebsiteRedirectLocation), Metadata: in.Metadata, Tags: tags}, nil
}

// encodingOf is a Content-Encoding without that of the request's own chunks, which
// does not belong to the object.
func encodingOf(header *string) string {
	var kept []string
	for _, e := range strings.Split(str(header), ",") {
		if e = strings.TrimSpace(e); e != "" && e != "aws-chunked" {
			kept = append(kept, e)
		}
	}
	return strings.Join(kept, ",")
}

// condition is what a PUT requires of the object that it replaces.
type condition struct {
	ifMatch, ifNoneMatch *string
}

func (c condition) any() bool { return c.ifMatch != nil || c.ifNoneMatch != nil }

// options are those of a commit with the condition in it: the metadata service
// evaluates it in the same entry that makes the object visible.
func (c condition) options() (client.CreateOptions, error) {
	opts := client.CreateOptions{Replace: c.ifNoneMatch == nil}
	if c.ifMatch == nil {
		return opts, nil
	}
	expect, ok := parseETag(*c.ifMatch)
	if !ok {
		return opts, s3err.GetPreconditionFailedErr(s3err.ConditionIfMatch)
	}
	opts.Expect = &expect
	return opts, nil
}

// checkPut evaluates the condition of a PUT against the current object, so that the
// endpoint does not read a body that it cannot commit. The commit evaluates it
// again.
func (objs *objects) checkPut(ctx context.Context, k objectKey, cond condition) error {
	if !cond.any() {
		return nil
	}
	o, err := objs.tree.find(ctx, k)
	if err != nil && !errors.Is(err, moraine.NotFound) {
		return err
	}
	tag := ""
	if o != nil {
		tag = etag(o.attr)
		if cond.ifMatch != nil && unquote(*cond.ifMatch) == "*" {
			return nil
		}
	}
	return versity.EvaluateObjectPutPreconditions(tag, cond.ifMatch, cond.ifNoneMatch, o != nil)
}

// putFile stores the body as the file of a key.
func (objs *objects) putFile(ctx context.Context, k objectKey, body *body, r *record, cond condition, level moraine.Level) (client.Attr, error) {
	opts, err := cond.options()
	if err != nil {
		return client.Attr{}, err
	}
	opts.Level = level
	opts.Parents = func(ctx context.Context) (moraine.InodeID, error) {
		dir, err := objs.tree.makeDirs(ctx, k.bucket, path.Dir(k.key))
		return dir.Inode(), err
	}
	f, err := objs.create(ctx, k, opts)
	if err != nil {
		return client.Attr{}, taken(err, cond)
	}
	defer f.Abort()
	if r.Checksum, err = receive(f, body); err != nil {
		return client.Attr{}, err
	}
	if err := objs.describe(ctx, f, r); err != nil {
		return client.Attr{}, err
	}
	done, err := f.Commit(ctx)
	if err != nil {
		return client.Attr{}, taken(err, cond)
	}
	if err := objs.settled(ctx, done, r); err != nil {
		return client.Attr{}, err
	}
	objs.metrics.PutBytes.Add(float64(body.bytes))
	return done.Attr, nil
}

// create begins the file of a key. Deletions of other keys may remove the
// directories above it at any time; create then makes them again.
func (objs *objects) create(ctx context.Context, k objectKey, opts client.CreateOptions) (*client.File, error) {
	for range dirTries {
		if _, err := objs.tree.makeDirs(ctx, k.bucket, path.Dir(k.key)); err != nil {
			return nil, err
		}
		f, err := objs.tree.cl.Create(ctx, k.path(), opts)
		if !errors.Is(err, moraine.NotFound) {
			return f, err
		}
	}
	return nil, dirsGone(k.key)
}

// taken is the answer to a PUT whose condition is false at its commit.
func taken(err error, cond condition) error {
	switch {
	case errors.Is(err, moraine.Exists) && cond.ifNoneMatch != nil:
		return s3err.GetPreconditionFailedErr(s3err.ConditionIfNoneMatch)
	case errors.Is(err, moraine.Conflict) && cond.ifMatch != nil:
		return s3err.GetPreconditionFailedErr(s3err.ConditionIfMatch)
	}
	return err
}

// receive writes the whole body to a file and verifies it against the announced
// checksum.
func receive(f *client.File, body *body) (*checksum, error) {
	if _, err := f.ReadFrom(body); err != nil {
		if body.err != nil {
			return nil, body.err
		}
		return nil, err
	}
	return body.check()
}

// plain reports whether the record says no more than a missing one.
func (r *record) plain() bool {
	return r.Checksum == nil && len(r.Metadata) == 0 && len(r.Tags) == 0 && (r.ContentType == "" || r.ContentType == defaultType) &&
		r.ContentEncoding+r.ContentDisposition+r.ContentLanguage+r.CacheControl+r.Expires+r.Redirect+r.Upload+r.Directory == ""
}

// putDir makes the directory of a key that ends in a slash an object.
func (objs *objects) putDir(ctx context.Context, k objectKey, body *body, r *record) (client.Attr, error) {
	if body.want != 0 {
		return client.Attr{}, s3err.GetAPIError(s3err.ErrDirectoryObjectContainsData)
	}
	if _, err := io.Copy(io.Discard, body); err != nil {
		return client.Attr{}, body.err
	}
	if _, err := body.check(); err != nil {
		return client.Attr{}, err
	}
	r.Directory = dirObject
	for range dirTries {
		attr, err := objs.tree.makeDirs(ctx, k.bucket, path.Clean(k.key))
		if err == nil {
			err = objs.tree.writeRecord(ctx, attr.Inode(), r)
		}
		if !errors.Is(err, moraine.NotFound) {
			return attr, err
		}
	}
	return client.Attr{}, dirsGone(k.key)
}
