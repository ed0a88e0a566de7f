package s3

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	versity "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// A multipart upload is a directory, named for its id, in a hidden directory of its
// bucket, so that parts and object have one tenant. Its record holds the key and
// the future record of the object. Each part is a file, named for its number, and
// is put like an object. So parts survive a restart of the endpoint, and several
// endpoints can receive parts of one upload.

const (
	// maxParts is the most parts of an upload.
	maxParts = 10_000
	// minPart is the least length of a part that is not the last.
	minPart = 5 << 20
	// hiddenMode is the mode of the directory of uploads.
	hiddenMode = 0o700
)

// upload is an unfinished upload.
type upload struct {
	id     string
	key    objectKey
	dir    moraine.InodeID
	record record
}

// uploads is the unfinished uploads, and what clients do with them. It has no lock:
// the directories of the uploads are the state.
type uploads struct {
	tree    *tree
	objects *objects
	owner   string // of each upload
}

func uploadPath(bucket, id string) string {
	return path.Join(bucketPath(bucket), uploadsDir, id)
}

// partName is the name of a part's file; names are in the order of numbers.
func partName(number int) string { return fmt.Sprintf("%05d", number) }

// CreateMultipartUpload begins an upload.
func (b *backend) CreateMultipartUpload(rc context.Context, in s3response.CreateMultipartUploadInput) (s3response.InitiateMultipartUploadResult, error) {
	out, err := b.uploads.create(b.life, in)
	return out, b.requests.answer(rc, "CreateMultipartUpload", err)
}

func (us *uploads) create(ctx context.Context, in s3response.CreateMultipartUploadInput) (out s3response.InitiateMultipartUploadResult, err error) {
	k, err := parseKey(str(in.Bucket), str(in.Key))
	if err != nil {
		return out, err
	}
	if k.isDir() {
		return out, s3err.GetAPIError(s3err.ErrDirectoryObjectContainsData)
	}
	if in.ObjectLockMode != "" || in.ObjectLockLegalHoldStatus != "" {
		return out, s3err.GetAPIError(s3err.ErrNotImplemented)
	}
	tags, err := versity.ParseObjectTags(str(in.Tagging))
	if err != nil {
		return out, err
	}
	hidden, err := us.makeUploadsDir(ctx, k.bucket)
	if err != nil {
		return out, err
	}
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return out, err
	}
	id := hex.EncodeToString(random[:])
	attr, err := us.tree.cl.Inodes().Mkdir(ctx, hidden, id, client.NodeOptions{Mode: hiddenMode, Exclusive: true})
	if err != nil {
		return out, err
	}
	r := &record{ContentType: str(in.ContentType), ContentEncoding: encodingOf(in.ContentEncoding), ContentDisposition: str(in.ContentDisposition),
		ContentLanguage: str(in.ContentLanguage), CacheControl: str(in.CacheControl), Expires: str(in.Expires),
		Redirect: str(in.WebsiteRedirectLocation), Metadata: in.Metadata, Tags: tags, Key: k.key, Created: time.Now().UnixNano()}
	if in.ChecksumAlgorithm != "" {
		r.Checksum = &checksum{Algorithm: in.ChecksumAlgorithm, Type: in.ChecksumType}
	}
	if err := us.tree.writeRecord(ctx, attr.Inode(), r); err != nil {
		return out, errors.Join(err, us.tree.cl.RemoveAll(ctx, uploadPath(k.bucket, id)))
	}
	return s3response.InitiateMultipartUploadResult{Bucket: k.bucket, Key: k.key, UploadId: id}, nil
}

// makeUploadsDir returns the hidden directory of a bucket. Parts are not flushed to
// the object tier; the complete object is.
func (us *uploads) makeUploadsDir(ctx context.Context, bucket string) (moraine.InodeID, error) {
	parent, err := us.tree.findBucket(ctx, bucket)
	if err != nil {
		return 0, err
	}
	attr, err := us.tree.cl.Inodes().Lookup(ctx, parent.Inode(), uploadsDir)
	if err == nil {
		return attr.Inode(), nil
	}
	if !errors.Is(err, moraine.NotFound) {
		return 0, err
	}
	attr, err = us.tree.cl.Inodes().Mkdir(ctx, parent.Inode(), uploadsDir, client.NodeOptions{Mode: hiddenMode})
	if err != nil {
		return 0, err
	}
	inode := attr.Inode()
	return inode, us.tree.cl.Policies().Set(ctx, inode, client.Policy{Flush: client.FlushNever})
}

// find returns an upload of a key.
func (us *uploads) find(ctx context.Context, bucket, key, id *string) (*upload, error) {
	k, err := parseKey(str(bucket), str(key))
	if err != nil {
		return nil, err
	}
	u := &upload{id: str(id), key: k}
	if raw, err := hex.DecodeString(u.id); err != nil || len(raw) != 16 {
		return nil, s3err.GetNoSuchUploadErr(u.id)
	}
	attr, err := us.tree.cl.Lstat(ctx, uploadPath(k.bucket, u.id))
	if err == nil {
		u.dir = attr.Inode()
		u.record, err = us.tree.readRecord(ctx, u.dir)
	}
	if errors.Is(err, moraine.NotFound) || err == nil && u.record.Key != k.key {
		return nil, s3err.GetNoSuchUploadErr(u.id)
	}
	return u, err
}

// partPath is the file of a part.
func (us *uploads) partPath(u *upload, number *int32) (string, error) {
	if number == nil || *number < 1 || *number > maxParts {
		return "", s3err.GetAPIError(s3err.ErrInvalidRequest)
	}
	return path.Join(uploadPath(u.key.bucket, u.id), partName(int(*number))), nil
}

// UploadPart stores a part. When it returns nil the part is as safe as an object. A
// part that was put before under its number is replaced.
func (b *backend) UploadPart(rc context.Context, in *s3.UploadPartInput) (*s3.UploadPartOutput, error) {
	endAfterChunked(rc)
	level, err := b.requests.levelOf(rc)
	if err != nil {
		return nil, b.requests.answer(rc, "UploadPart", err)
	}
	out, err := b.uploads.putPart(b.life, b.requests.transferOf(rc), in, level)
	return out, b.requests.answer(rc, "UploadPart", err)
}

func (us *uploads) putPart(ctx context.Context, from transfer, in *s3.UploadPartInput, level moraine.Level) (*s3.UploadPartOutput, error) {
	u, err := us.find(ctx, in.Bucket, in.Key, in.UploadId)
	if err != nil {
		return nil, err
	}
	name, err := us.partPath(u, in.PartNumber)
	if err != nil {
		return nil, err
	}
	body, err := newBody(in.Body, in.ContentLength, in.ChecksumAlgorithm, sumsOf(in.ChecksumCRC32, in.ChecksumCRC32C, in.ChecksumSHA1,
		in.ChecksumSHA256, in.ChecksumCRC64NVME, in.ChecksumSHA512, in.ChecksumMD5, in.ChecksumXXHASH64, in.ChecksumXXHASH3, in.ChecksumXXHASH128))
	if err != nil {
		return nil, err
	}
	body.from = from
	f, err := us.tree.cl.Create(ctx, name, client.CreateOptions{Replace: true, Level: level})
	if err != nil {
		return nil, goneUpload(err, u)
	}
	defer f.Abort()
	r := &record{}
	if r.Checksum, err = receive(f, body); err != nil {
		return nil, goneUpload(err, u)
	}
	if err := us.objects.describe(ctx, f, r); err != nil {
		return nil, goneUpload(err, u)
	}
	done, err := f.Commit(ctx)
	if err != nil {
		return nil, goneUpload(err, u)
	}
	if err := us.objects.settled(ctx, done, r); err != nil {
		return nil, goneUpload(err, u)
	}
	us.objects.metrics.PutBytes.Add(float64(body.bytes))
	tag, c := etag(done.Attr), r.Checksum.reply()
	return &s3.UploadPartOutput{ETag: &tag, ChecksumCRC32: c.CRC32, ChecksumCRC32C: c.CRC32C, ChecksumCRC64NVME: c.CRC64NVME,
		ChecksumSHA1: c.SHA1, ChecksumSHA256: c.SHA256, ChecksumSHA512: c.SHA512, ChecksumMD5: c.MD5,
		ChecksumXXHASH64: c.XXHASH64, ChecksumXXHASH3: c.XXHASH3, ChecksumXXHASH128: c.XXHASH128}, nil
}

// goneUpload is the error of an upload that ended while a part was put.
func goneUpload(err error, u *upload) error {
	if errors.Is(err, moraine.NotFound) {
		return s3err.GetNoSuchUploadErr(u.id)
	}
	return err
}

// AbortMultipartUpload aborts an upload and removes its parts.
func (b *backend) AbortMultipartUpload(rc context.Context, in *s3.AbortMultipartUploadInput) error {
	return b.requests.answer(rc, "AbortMultipartUpload", b.uploads.abort(b.life, in))
}

func (us *uploads) abort(ctx context.Context, in *s3.AbortMultipartUploadInput) error {
	u, err := us.find(ctx, in.Bucket, in.Key, in.UploadId)
	if err != nil {
		return err
	}
	return us.tree.cl.RemoveAll(ctx, uploadPath(u.key.bucket, u.id))
}

// ListParts lists the parts of an upload, in order of number.
func (b *backend) ListParts(rc context.Context, in *s3.ListPartsInput) (s3response.ListPartsResult, error) {
	out, err := b.uploads.listParts(b.life, in)
	return out, b.requests.answer(rc, "ListParts", err)
}

func (us *uploads) listParts(ctx context.Context, in *s3.ListPartsInput) (out s3response.ListPartsResult, err error) {
	u, err := us.find(ctx, in.Bucket, in.Key, in.UploadId)
	if err != nil {
		return out, err
	}
	after := 0
	if m := str(in.PartNumberMarker); m != "" {
		if after, err = strconv.Atoi(m); err != nil {
			return out, s3err.GetAPIError(s3err.ErrInvalidRequest)
		}
	}
	max, _ := limit(in.MaxParts)
	out = s3response.ListPartsResult{Bucket: u.key.bucket, Key: u.key.key, UploadID: u.id, StorageClass: types.StorageClassStandard,
		PartNumberMarker: after, MaxParts: max}
	if c := u.record.Checksum; c != nil {
		out.ChecksumAlgorithm, out.ChecksumType = c.Algorithm, c.Type
	}
	for e, err := range us.tree.cl.Inodes().ReadDirAfter(ctx, u.dir, partName(after)) {
		if err != nil {
			return out, goneUpload(err, u)
		}
		if len(out.Parts) == max {
			out.IsTruncated = true
			break
		}
		p, err := us.listedPart(ctx, u, e)
		if err != nil {
			return out, err
		}
		out.Parts, out.NextPartNumberMarker = append(out.Parts, p), p.PartNumber
	}
	return out, nil
}

func (us *uploads) listedPart(ctx context.Context, u *upload, e client.DirEntry) (s3response.Part, error) {
	o := object{attr: e.Attr}
	p := s3response.Part{ETag: etag(e.Attr), Size: o.size(), LastModified: o.mtime()}
	var err error
	if p.PartNumber, err = strconv.Atoi(e.Name); err != nil || u.record.Checksum == nil {
		return p, err
	}
	if o.record, err = us.tree.readRecord(ctx, o.inode()); err != nil && !errors.Is(err, moraine.NotFound) {
		return p, err
	}
	c := o.checksums()
	p.ChecksumCRC32, p.ChecksumCRC32C, p.ChecksumCRC64NVME, p.ChecksumSHA1, p.ChecksumSHA256 = c.CRC32, c.CRC32C, c.CRC64NVME, c.SHA1, c.SHA256
	p.ChecksumSHA512, p.ChecksumMD5, p.ChecksumXXHASH64, p.ChecksumXXHASH3, p.ChecksumXXHASH128 = c.SHA512, c.MD5, c.XXHASH64, c.XXHASH3, c.XXHASH128
	return p, nil
}

// ListMultipartUploads lists the unfinished uploads of a bucket, in order of key
// and age.
func (b *backend) ListMultipartUploads(rc context.Context, in *s3.ListMultipartUploadsInput) (s3response.ListMultipartUploadsResult, error) {
	out, err := b.uploads.list(b.life, in)
	return out, b.requests.answer(rc, "ListMultipartUploads", err)
}

func (us *uploads) list(ctx context.Context, in *s3.ListMultipartUploadsInput) (out s3response.ListMultipartUploadsResult, err error) {
	bucket, max := str(in.Bucket), maxListed
	if in.MaxUploads != nil {
		max = min(max, int(*in.MaxUploads))
	}
	uploads, err := us.after(ctx, bucket, str(in.Prefix), str(in.KeyMarker), str(in.UploadIdMarker))
	if err != nil {
		return out, err
	}
	p, err := versity.ListMultipartUploads(uploads, str(in.Prefix), str(in.Delimiter), str(in.KeyMarker), str(in.UploadIdMarker), max)
	if err != nil {
		return out, err
	}
	return s3response.ListMultipartUploadsResult{Bucket: bucket, KeyMarker: str(in.KeyMarker), UploadIDMarker: str(in.UploadIdMarker),
		NextKeyMarker: p.NextKeyMarker, NextUploadIDMarker: p.NextUploadIDMarker, Delimiter: str(in.Delimiter), Prefix: str(in.Prefix),
		MaxUploads: max, IsTruncated: p.IsTruncated, Uploads: p.Uploads, CommonPrefixes: p.CommonPrefixes}, nil
}

// after returns all uploads of a bucket whose keys have a prefix and come
// after a marker.
func (us *uploads) after(ctx context.Context, bucket, prefix, marker, idMarker string) ([]s3response.Upload, error) {
	var out []s3response.Upload
	for e, err := range us.tree.cl.ReadDir(ctx, path.Join(bucketPath(bucket), uploadsDir)) {
		if errors.Is(err, moraine.NotFound) {
			return nil, us.tree.mustBucket(ctx, bucket)
		}
		if err != nil {
			return nil, err
		}
		r, err := us.tree.readRecord(ctx, e.Attr.Inode())
		if errors.Is(err, moraine.NotFound) || err == nil && r.Key == "" {
			continue // it ended meanwhile, or its start was interrupted
		}
		if err != nil {
			return nil, err
		}
		if !strings.HasPrefix(r.Key, prefix) || r.Key < marker || r.Key == marker && idMarker == "" && marker != "" {
			continue
		}
		u := s3response.Upload{Key: r.Key, UploadID: e.Name, StorageClass: types.StorageClassStandard, Initiated: time.Unix(0, r.Created),
			Owner: s3response.Owner{ID: us.owner}, Initiator: s3response.Initiator{ID: us.owner}}
		if r.Checksum != nil {
			u.ChecksumAlgorithm, u.ChecksumType = r.Checksum.Algorithm, r.Checksum.Type
		}
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, c s3response.Upload) int {
		if order := strings.Compare(a.Key, c.Key); order != 0 {
			return order
		}
		return a.Initiated.Compare(c.Initiated)
	})
	return out, nil
}
