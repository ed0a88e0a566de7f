package object

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/morainefs/moraine"
)

const (
	// MaxParts is the most parts of an upload, MaxSize the most bytes of an object:
	// the limits of S3.
	MaxParts = 10_000
	MaxSize  = 5 << 40
	// maxPages limits the pages of a listing that are read.
	maxPages = 1000
	// minPart is the least length of a part that is not the last.
	minPart = 5 << 20
)

// Part is an uploaded part.
type Part struct {
	ETag string
	// CRC is the CRC32C of its bytes; HasCRC is false if it is unknown.
	CRC    uint32
	HasCRC bool
}

const (
	algorithmHeader = "x-amz-checksum-algorithm"
	typeHeader      = "x-amz-checksum-type"
	crcHeader       = "x-amz-checksum-crc32c"
	wholeObject     = "FULL_OBJECT"
)

// NewUpload begins a multipart upload to a key and returns its id. The key does not
// change before Complete. meta is the object's user metadata, by name.
func (b *Bucket) NewUpload(ctx context.Context, key string, meta map[string]string) (id string, err error) {
	return b.newUpload(ctx, key, meta, !b.cfg.NoChecksums)
}

func (b *Bucket) newUpload(ctx context.Context, key string, meta map[string]string, summed bool) (id string, err error) {
	headers := make(map[string]string, len(meta)+2)
	for k, v := range meta {
		headers["x-amz-meta-"+k] = v
	}
	if summed {
		headers[algorithmHeader], headers[typeHeader] = "CRC32C", wholeObject
	}
	err = b.do(ctx, "new_upload", key, func(ctx context.Context) error {
		id, err = b.core.NewMultipartUpload(ctx, b.cfg.Bucket, key, minio.PutObjectOptions{UserMetadata: headers})
		return err
	})
	return id, err
}

// PutPart uploads a part, 1 to MaxParts. crc is the CRC32C of data, which the store
// verifies where it can. Putting a number again replaces the part. data is not
// kept.
func (b *Bucket) PutPart(ctx context.Context, key, id string, number int, data []byte, crc uint32) (Part, error) {
	part := Part{CRC: crc, HasCRC: true}
	err := b.do(ctx, "put_part", key, func(ctx context.Context) error {
		opts := minio.PutObjectPartOptions{DisableContentSha256: true}
		if !b.cfg.NoChecksums {
			opts.CustomHeader = http.Header{http.CanonicalHeaderKey(crcHeader): {encodeCRC(crc)}}
		}
		p, err := b.core.PutObjectPart(ctx, b.cfg.Bucket, key, id, number, bytes.NewReader(data), int64(len(data)), opts)
		if err != nil {
			return err
		}
		b.metrics.Sent.Add(float64(len(data)))
		part.ETag = p.ETag
		return nil
	})
	return part, err
}

// Condition is what a completion requires of the key; the zero value requires
// nothing. Stores that do not support conditions ignore them: Traits tells.
type Condition struct {
	// Free requires that the key has no object.
	Free bool
	// ETag, unless empty, is what the object at the key must have.
	ETag string
}

// Complete makes the object from the parts, in order, and returns the store's
// description of it. crc, unless known is false, is the CRC32C of the whole. It
// returns Conflict if the key does not meet cond. After an error that is not
// Refused, the object may exist. A repeat of a completion that succeeded may return
// NotFound.
func (b *Bucket) Complete(ctx context.Context, key, id string, parts []Part, crc uint32, known bool, cond Condition) (Info, error) {
	list := make([]minio.CompletePart, len(parts))
	for i, p := range parts {
		list[i] = minio.CompletePart{PartNumber: i + 1, ETag: p.ETag}
		if p.HasCRC && !b.cfg.NoChecksums {
			list[i].ChecksumCRC32C = encodeCRC(p.CRC)
		}
	}
	var opts minio.PutObjectOptions
	if known && !b.cfg.NoChecksums {
		opts.UserMetadata = map[string]string{crcHeader: encodeCRC(crc), typeHeader: wholeObject}
	}
	switch {
	case cond.Free:
		opts.SetMatchETagExcept("*")
	case cond.ETag != "":
		opts.SetMatchETag(cond.ETag)
	}
	var done minio.UploadInfo
	err := b.do(ctx, "complete", key, func(ctx context.Context) error {
		var err error
		done, err = b.core.CompleteMultipartUpload(ctx, b.cfg.Bucket, key, id, list, opts)
		return err
	})
	if err != nil {
		return Info{}, err
	}
	return Info{Ref: Ref{Key: key, Version: versionOf(done.VersionID), ETag: done.ETag}}, nil
}

// Abort ends an upload and frees its parts. It returns NotFound if the upload was
// completed or aborted before.
func (b *Bucket) Abort(ctx context.Context, key, id string) error {
	return b.do(ctx, "abort", key, func(ctx context.Context) error {
		return b.core.AbortMultipartUpload(ctx, b.cfg.Bucket, key, id)
	})
}

// Uploads lists the ids of all unfinished uploads to exactly this key.
func (b *Bucket) Uploads(ctx context.Context, key string) ([]string, error) {
	var ids []string
	seen := map[string]bool{} // markers
	for keyMarker, idMarker := "", ""; ; {
		var page minio.ListMultipartUploadsResult
		err := b.do(ctx, "uploads", key, func(ctx context.Context) (err error) {
			page, err = b.core.ListMultipartUploads(ctx, b.cfg.Bucket, key, keyMarker, idMarker, "", 1000)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, u := range page.Uploads {
			if u.Key == key {
				ids = append(ids, u.UploadID)
			}
		}
		// Keys come in order, so the uploads of the key itself come first under its
		// prefix. A store that forgets its markers would make the listing endless;
		// the loop stops there.
		if !page.IsTruncated || page.NextKeyMarker > key {
			return ids, nil
		}
		if seen[page.NextUploadIDMarker] || page.NextKeyMarker < keyMarker || len(seen) == maxPages {
			return ids, &moraine.Error{Op: "object.uploads", Ref: b.ref(key), Kind: moraine.Unavailable,
				Err: fmt.Errorf("listing does not advance past key %q, upload %q", page.NextKeyMarker, page.NextUploadIDMarker)}
		}
		seen[page.NextUploadIDMarker] = true
		keyMarker, idMarker = page.NextKeyMarker, page.NextUploadIDMarker
	}
}

// PredictETag returns the ETag that stores commonly give an object of these parts:
// the MD5 of their MD5s, and their number. It returns "" if the parts' own ETags
// have another form.
func PredictETag(parts []Part) string {
	h := md5.New()
	for _, p := range parts {
		sum, err := hex.DecodeString(p.ETag)
		if err != nil || len(sum) != md5.Size {
			return ""
		}
		h.Write(sum)
	}
	return fmt.Sprintf("%x-%d", h.Sum(nil), len(parts))
}

func encodeCRC(crc uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc))
}

func decodeCRC(s string) (uint32, bool) {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil || len(b) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(b), true
}

func trimQuotes(s string) string { return strings.Trim(s, `"`) }
func lower(s string) string      { return strings.ToLower(s) }
