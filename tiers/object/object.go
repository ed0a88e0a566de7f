package object

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/morainefs/moraine"
)

// Ref names bytes that the bucket held at some time.
type Ref struct {
	Key string
	// Version is set for a versioned bucket; empty elsewhere.
	Version string
	// ETag is what the object must still have; empty: any.
	ETag string
}

// Info describes an object, as the store reports it.
type Info struct {
	Ref
	// Size is its length in bytes.
	Size int64
	// CRC is the CRC32C of the whole object. HasCRC is false if the store does not
	// report it.
	CRC    uint32
	HasCRC bool
	// Meta is its user metadata, by lower-case name, without x-amz-meta-.
	Meta map[string]string
}

// Is returns Conflict if an object does not have that size or, where the store
// reports it, that CRC32C.
func (i *Info) Is(size uint64, crc uint32) error {
	switch {
	case i.Size != int64(size):
		return &moraine.Error{Op: "object.Head", Ref: i.Key, Kind: moraine.Conflict, Err: fmt.Errorf("bucket has %d bytes, the record says %d", i.Size, size)}
	case i.HasCRC && i.CRC != crc:
		return &moraine.Error{Op: "object.Head", Ref: i.Key, Kind: moraine.Conflict, Err: fmt.Errorf("bucket has CRC32C %08x, the record says %08x", i.CRC, crc)}
	}
	return nil
}

// Head describes the object at a key, or its version if r has one. It returns
// NotFound if there is none, and Corrupt if the store says that it is damaged (BadDigest).
func (b *Bucket) Head(ctx context.Context, r Ref) (Info, error) {
	var info Info
	err := b.do(ctx, "head", r.Key, func(ctx context.Context) error {
		opts := minio.StatObjectOptions{VersionID: r.Version, Checksum: !b.cfg.NoChecksums}
		if err := match(&opts, r); err != nil {
			return err
		}
		o, err := b.core.StatObject(ctx, b.cfg.Bucket, r.Key, opts)
		if err == nil {
			info = infoOf(r.Key, o)
		}
		return b.explain(ctx, r, err)
	})
	return info, err
}

// explain returns the error of a HEAD that the store refused as a bad request. The answer to
// a HEAD has no body that says why, such as that the object is damaged: that to a GET has.
func (b *Bucket) explain(ctx context.Context, r Ref, err error) error {
	var said minio.ErrorResponse
	if !errors.As(err, &said) || said.StatusCode != http.StatusBadRequest {
		return err
	}
	opts := minio.GetObjectOptions{VersionID: r.Version}
	if err := errors.Join(opts.SetRange(0, 0), match(&opts, r)); err != nil {
		return err
	}
	body, _, _, why := b.core.GetObject(ctx, b.cfg.Bucket, r.Key, opts)
	if why == nil {
		_ = body.Close() // the object exists: the HEAD has described it
		return err
	}
	return why
}

func match(opts *minio.GetObjectOptions, r Ref) error {
	if r.ETag == "" {
		return nil
	}
	return opts.SetMatchETag(r.ETag)
}

func infoOf(key string, o minio.ObjectInfo) Info {
	info := Info{Ref: Ref{Key: key, Version: versionOf(o.VersionID), ETag: o.ETag}, Size: o.Size, Meta: map[string]string{}}
	for k, v := range o.UserMetadata {
		info.Meta[lower(k)] = v
	}
	if o.ChecksumMode == "FULL_OBJECT" {
		info.CRC, info.HasCRC = decodeCRC(o.ChecksumCRC32C)
	}
	return info
}

// versionOf removes the version of buckets without versions.
func versionOf(v string) string {
	if v == "null" {
		return ""
	}
	return v
}

// Get fills dst with the bytes of r from off on, or fails: it is never short. It
// returns Conflict if the object at the key has another ETag, and NotFound if there
// is none. On error the contents of dst are undefined. len(dst) must not be 0.
func (b *Bucket) Get(ctx context.Context, r Ref, off int64, dst []byte) error {
	return b.do(ctx, "get", r.Key, func(ctx context.Context) error {
		opts := minio.GetObjectOptions{VersionID: r.Version}
		if err := match(&opts, r); err != nil {
			return err
		}
		if err := opts.SetRange(off, off+int64(len(dst))-1); err != nil {
			return err
		}
		body, info, _, err := b.core.GetObject(ctx, b.cfg.Bucket, r.Key, opts)
		if err != nil {
			return err
		}
		defer body.Close()
		if info.Size != int64(len(dst)) {
			return &moraine.Error{Kind: moraine.Conflict, Err: fmt.Errorf("bucket sent %d bytes, not %d", info.Size, len(dst))}
		}
		n, err := io.ReadFull(body, dst)
		b.metrics.Received.Add(float64(n))
		if err != nil {
			return short(n, len(dst), err)
		}
		return nil
	})
}

// Delete removes the object at a key, or one version of it. Removing a missing
// object succeeds. If r has an ETag, the object at the key must have it, or the
// deletion fails with Conflict. Stores that do not support this ignore it, or
// refuse the request: Traits tells.
func (b *Bucket) Delete(ctx context.Context, r Ref) error {
	err := b.do(ctx, "delete", r.Key, func(ctx context.Context) error {
		if r.ETag != "" {
			ctx = withHeader(ctx, "If-Match", strconv.Quote(r.ETag))
		}
		return b.core.RemoveObject(ctx, b.cfg.Bucket, r.Key, minio.RemoveObjectOptions{VersionID: r.Version})
	})
	if errors.Is(err, moraine.NotFound) {
		return nil
	}
	return err
}

// Copy copies src, of size bytes, to another key of the bucket, inside the store.
// It fails with Conflict if the key does not hold src. After an error that is not
// Refused, the copy may exist.
func (b *Bucket) Copy(ctx context.Context, src Ref, size int64, dst string) (Info, error) {
	if size > b.cfg.CopyLimit {
		return b.copyParts(ctx, src, size, dst)
	}
	err := b.do(ctx, "copy", dst, func(ctx context.Context) error {
		_, err := b.core.CopyObject(ctx, b.cfg.Bucket, src.Key, b.cfg.Bucket, dst, copyCondition(src),
			minio.CopySrcOptions{VersionID: src.Version}, minio.PutObjectOptions{})
		return err
	})
	if err != nil {
		return Info{}, err
	}
	return b.copied(ctx, dst)
}

// copied describes a finished copy. The copy exists, even if the request for its
// description fails.
func (b *Bucket) copied(ctx context.Context, dst string) (Info, error) {
	info, err := b.Head(ctx, Ref{Key: dst})
	return info, unsure(err)
}

func copyCondition(src Ref) map[string]string {
	if src.ETag == "" {
		return nil
	}
	return map[string]string{"x-amz-copy-source-if-match": strconv.Quote(src.ETag)}
}

// copyParts copies an object that is too large for a single copy, as an upload
// whose parts are ranges of src. It requests no checksums: stores differ in which
// they keep for a copied part.
func (b *Bucket) copyParts(ctx context.Context, src Ref, size int64, dst string) (Info, error) {
	at, err := b.Head(ctx, src)
	if err != nil {
		return Info{}, err
	}
	id, err := b.newUpload(ctx, dst, at.Meta, false)
	if err != nil {
		return Info{}, err
	}
	parts, err := b.copyRanges(ctx, src, size, dst, id)
	if err == nil {
		_, err = b.Complete(ctx, dst, id, parts, 0, false, Condition{})
	}
	if err == nil {
		return b.copied(ctx, dst)
	}
	if left := b.Abort(context.WithoutCancel(ctx), dst, id); left != nil {
		return Info{}, unsure(errors.Join(err, left)) // the upload may be open, or complete
	}
	return Info{}, err
}

func (b *Bucket) copyRanges(ctx context.Context, src Ref, size int64, dst, id string) ([]Part, error) {
	step := max(b.cfg.CopyLimit/4, (size+MaxParts-1)/MaxParts, minPart)
	var parts []Part
	for off := int64(0); off < size; off += step {
		err := b.do(ctx, "copy_part", dst, func(ctx context.Context) error {
			headers := copyCondition(src)
			if src.Version != "" {
				if headers == nil {
					headers = map[string]string{}
				}
				headers["x-amz-copy-source"] = s3utils.EncodePath(b.cfg.Bucket+"/"+src.Key) + "?versionId=" + src.Version
			}
			p, err := b.core.CopyObjectPart(ctx, b.cfg.Bucket, src.Key, b.cfg.Bucket, dst, id, len(parts)+1, off, min(step, size-off), headers)
			if err == nil {
				parts = append(parts, Part{ETag: trimQuotes(p.ETag)})
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return parts, nil
}
