package s3

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// CompleteMultipartUpload makes one object from the parts that the client names. It
// moves no bytes: the object's file takes over their extents. The object gets its
// name, and the upload ends, in one entry of the metadata's log. A repeated
// request, by this client or another, therefore finds the object or the upload.
func (b *backend) CompleteMultipartUpload(rc context.Context, in *s3.CompleteMultipartUploadInput) (s3response.CompleteMultipartUploadResult, string, error) {
	level, err := b.requests.levelOf(rc)
	if err != nil {
		return s3response.CompleteMultipartUploadResult{}, "", b.requests.answer(rc, "CompleteMultipartUpload", err)
	}
	attr, err := b.uploads.complete(b.life, in)
	if err == nil {
		err = b.objects.reach(b.life, attr, level)
	}
	if err != nil {
		return s3response.CompleteMultipartUploadResult{}, "", b.requests.answer(rc, "CompleteMultipartUpload", err)
	}
	tag := etag(attr)
	return s3response.CompleteMultipartUploadResult{Bucket: in.Bucket, Key: in.Key, ETag: &tag}, "", nil
}

func (us *uploads) complete(ctx context.Context, in *s3.CompleteMultipartUploadInput) (client.Attr, error) {
	u, err := us.find(ctx, in.Bucket, in.Key, in.UploadId)
	if _, gone := err.(s3err.NoSuchUploadError); gone {
		return us.completedBefore(ctx, in, err)
	}
	if err != nil {
		return client.Attr{}, err
	}
	if in.MultipartUpload == nil {
		return client.Attr{}, s3err.GetAPIError(s3err.ErrMalformedXML)
	}
	parts, err := us.chosenParts(ctx, u, in.MultipartUpload.Parts)
	if err != nil {
		return client.Attr{}, err
	}
	if in.MpuObjectSize != nil && *in.MpuObjectSize != parts.bytes {
		return client.Attr{}, s3err.GetIncorrectMpObjectSizeErr(parts.bytes, *in.MpuObjectSize)
	}
	cond := condition{ifMatch: in.IfMatch, ifNoneMatch: in.IfNoneMatch}
	if err := us.objects.checkPut(ctx, u.key, cond); err != nil {
		return client.Attr{}, err
	}
	r := u.record
	r.Key, r.Created, r.Checksum, r.Upload = "", 0, nil, u.id
	attr, consumed, err := us.objects.assemble(ctx, u.key, parts.ranges, u.dir, &r, cond)
	if errors.Is(err, moraine.NotFound) || errors.Is(err, moraine.Stale) {
		return us.overtaken(ctx, in)
	}
	if err != nil {
		return client.Attr{}, err
	}
	r.Parts = parts.runs
	us.objects.settle(ctx, attr, &r)
	if consumed {
		return attr, nil
	}
	if err := us.tree.cl.RemoveAll(ctx, uploadPath(u.key.bucket, u.id)); err != nil {
		us.objects.log.Warn("upload cleanup failed", "bucket", u.key.bucket, "upload", u.id, "err", err)
	}
	return attr, nil
}

// overtaken answers a completion whose upload was aborted, or completed by another
// request, or of which a part was replaced, since it was found.
func (us *uploads) overtaken(ctx context.Context, in *s3.CompleteMultipartUploadInput) (client.Attr, error) {
	u, err := us.find(ctx, in.Bucket, in.Key, in.UploadId)
	if err == nil {
		_, err = us.chosenParts(ctx, u, in.MultipartUpload.Parts)
	}
	if err == nil {
		err = s3err.GetNoSuchUploadErr(u.id) // the upload is missing, and this error tells the client what to do
	}
	if _, gone := err.(s3err.NoSuchUploadError); gone {
		return us.completedBefore(ctx, in, err)
	}
	return client.Attr{}, err
}

// completedBefore answers a client that repeats the request because it lost the
// first answer: the object exists, and comes from this upload.
func (us *uploads) completedBefore(ctx context.Context, in *s3.CompleteMultipartUploadInput, gone error) (client.Attr, error) {
	k, err := parseKey(str(in.Bucket), str(in.Key))
	if err != nil {
		return client.Attr{}, err
	}
	o, err := us.tree.find(ctx, k)
	if errors.Is(err, moraine.NotFound) || err == nil && o.record.Upload != str(in.UploadId) {
		return client.Attr{}, gone
	}
	if err != nil {
		return client.Attr{}, err
	}
	return o.attr, nil
}

// chosen is the parts that complete an upload.
type chosen struct {
	ranges []client.InodeRange
	runs   []partRun
	bytes  int64
}

// chosenParts finds the parts that a client names, in rising order, and checks them
// against what the client says of them.
func (us *uploads) chosenParts(ctx context.Context, u *upload, want []types.CompletedPart) (chosen, error) {
	var c chosen
	there := map[string]client.Attr{}
	for e, err := range us.tree.cl.Inodes().ReadDir(ctx, u.dir) {
		if err != nil {
			return c, goneUpload(err, u)
		}
		there[e.Name] = e.Attr
	}
	last := int32(0)
	for i, p := range want {
		if p.PartNumber == nil || p.ETag == nil {
			return c, s3err.GetAPIError(s3err.ErrMalformedXML)
		}
		number := *p.PartNumber
		if number < 1 {
			return c, s3err.GetInvalidArgumentErr(s3err.InvalidArgCompleteMpPartNumber, fmt.Sprint(number))
		}
		if number <= last {
			return c, s3err.GetAPIError(s3err.ErrInvalidPartOrder)
		}
		last = number
		attr, uploaded := there[partName(int(number))]
		if !uploaded || unquote(etag(attr)) != unquote(*p.ETag) {
			return c, s3err.GetInvalidPartErr(u.id, number, *p.ETag)
		}
		size := attr.Size()
		if size < minPart && i < len(want)-1 {
			return c, s3err.GetEntityTooSmallErr(size, minPart)
		}
		c.add(attr)
	}
	return c, nil
}

// add adds one part. An empty part has no range, since length 0 would mean all.
func (c *chosen) add(attr client.Attr) {
	size := attr.Size()
	c.bytes += size
	if size > 0 {
		c.ranges = append(c.ranges, client.InodeRange{Inode: attr.Inode(), Generation: attr.Generation(), Length: size})
	}
	if n := len(c.runs); n > 0 && c.runs[n-1].Bytes == size {
		c.runs[n-1].Count++
		return
	}
	c.runs = append(c.runs, partRun{Bytes: size, Count: 1})
}

// assemble makes the object of a key from ranges of other files, with its record,
// in one step. The same step consumes parts unless it is 0; consumed is as in
// ConcatParts.
func (objs *objects) assemble(ctx context.Context, k objectKey, ranges []client.InodeRange, parts moraine.InodeID, r *record, cond condition) (attr client.Attr, consumed bool, err error) {
	opts, err := cond.options()
	if err != nil {
		return client.Attr{}, false, err
	}
	if !r.plain() {
		data, err := r.encode()
		if err != nil {
			return client.Attr{}, false, err
		}
		opts.Xattrs = map[string][]byte{recordXattr: data}
	}
	above := path.Dir(k.key)
	for range dirTries {
		dir, err := objs.tree.makeDirs(ctx, k.bucket, above)
		if err != nil {
			return client.Attr{}, false, err
		}
		if parts == 0 {
			attr, err = objs.tree.cl.Concat(ctx, k.path(), ranges, opts)
		} else {
			attr, consumed, err = objs.tree.cl.ConcatParts(ctx, k.path(), ranges, parts, opts)
		}
		if err == nil {
			return attr, consumed, nil
		}
		if errors.Is(err, moraine.NotFound) && objs.tree.moved(ctx, k.bucket, above, dir) {
			continue // the last other key of the directory was deleted, and the directory with it
		}
		objs.tree.prune(ctx, k.bucket, above)
		return client.Attr{}, false, taken(err, cond)
	}
	return client.Attr{}, false, dirsGone(k.key)
}
