package localserver

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	versity "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/morainefs/moraine/tiers/object/localstore"
)

// minPart is the least length of a part that is not the last.
const minPart = 5 << 20

func rangeHeader(off, n, size int64) string {
	return fmt.Sprintf("bytes %d-%d/%d", off, off+n-1, size)
}

// CreateMultipartUpload begins an upload.
func (b *backend) CreateMultipartUpload(_ context.Context, in s3response.CreateMultipartUploadInput) (out s3response.InitiateMultipartUploadResult, err error) {
	if err := b.has(str(in.Bucket)); err != nil {
		return out, err
	}
	id, err := b.store.NewUpload(str(in.Key), localstore.Record{Meta: in.Metadata,
		Headers: headers(in.ContentType, in.ContentEncoding, in.ContentDisposition, in.ContentLanguage, in.CacheControl, in.Expires)})
	return s3response.InitiateMultipartUploadResult{Bucket: str(in.Bucket), Key: str(in.Key), UploadId: id}, answer(err)
}

// UploadPart stores a part.
func (b *backend) UploadPart(rc context.Context, in *s3.UploadPartInput) (*s3.UploadPartOutput, error) {
	b.places.Proved(rc)
	if err := b.has(str(in.Bucket)); err != nil {
		return nil, err
	}
	want, err := decodeCRC(in.ChecksumCRC32C)
	if err != nil {
		return nil, err
	}
	r, err := b.store.PutPart(str(in.Key), str(in.UploadId), int(*in.PartNumber), body(in.Body, in.ContentLength), want)
	if err != nil {
		return nil, upload(str(in.UploadId), err)
	}
	return &s3.UploadPartOutput{ETag: quoted(r.ETag), ChecksumCRC32C: encodeCRC(r.CRC)}, nil
}

// UploadPartCopy makes a part of a range of an object.
func (b *backend) UploadPartCopy(_ context.Context, in *s3.UploadPartCopyInput) (out s3response.CopyPartResult, err error) {
	if err := b.has(str(in.Bucket)); err != nil {
		return out, err
	}
	src, f, err := b.source(str(in.CopySource), in.CopySourceIfMatch, in.CopySourceIfNoneMatch, in.CopySourceIfModifiedSince, in.CopySourceIfUnmodifiedSince)
	if err != nil {
		return out, err
	}
	defer f.Close()
	off, n, err := versity.ParseCopySourceRange(src.Size, str(in.CopySourceRange))
	if err != nil {
		return out, err
	}
	n = min(n, src.Size-off) // for an open range the library passes one byte too many
	r, err := b.store.PutPart(str(in.Key), str(in.UploadId), int(*in.PartNumber), io.NewSectionReader(f, off, n), nil)
	if err != nil {
		return out, upload(str(in.UploadId), err)
	}
	return s3response.CopyPartResult{ETag: quoted(r.ETag), LastModified: time.Unix(0, r.Modified).UTC()}, nil
}

// CompleteMultipartUpload makes an object from the parts that the client names.
func (b *backend) CompleteMultipartUpload(_ context.Context, in *s3.CompleteMultipartUploadInput) (out s3response.CompleteMultipartUploadResult, version string, err error) {
	if err := b.has(str(in.Bucket)); err != nil {
		return out, "", err
	}
	if in.MultipartUpload == nil || len(in.MultipartUpload.Parts) == 0 {
		return out, "", s3err.GetAPIError(s3err.ErrMalformedXML)
	}
	want, err := decodeCRC(in.ChecksumCRC32C)
	if err != nil {
		return out, "", err
	}
	cond, err := condition(in.IfMatch, in.IfNoneMatch)
	if err != nil {
		return out, "", err
	}
	parts, err := b.chosen(in)
	if err != nil {
		return out, "", err
	}
	r, err := b.store.Complete(str(in.Key), str(in.UploadId), parts, want, cond)
	if err != nil {
		if _, there := b.store.Parts(str(in.Key), str(in.UploadId)); there == nil {
			return out, "", answer(err) // the upload itself is not missing
		}
		return out, "", upload(str(in.UploadId), err)
	}
	return s3response.CompleteMultipartUploadResult{Bucket: in.Bucket, Key: in.Key, ETag: quoted(r.ETag), ChecksumCRC32C: encodeCRC(r.CRC),
		ChecksumType: ptr(types.ChecksumTypeFullObject)}, "", nil
}

// chosen checks the parts that a completion names against the existing ones.
func (b *backend) chosen(in *s3.CompleteMultipartUploadInput) ([]localstore.Part, error) {
	id := str(in.UploadId)
	have, err := b.store.Parts(str(in.Key), id)
	if err != nil {
		return nil, upload(id, err)
	}
	var parts []localstore.Part
	total, last := int64(0), int32(0)
	for n, p := range in.MultipartUpload.Parts {
		if p.PartNumber == nil || p.ETag == nil {
			return nil, s3err.GetAPIError(s3err.ErrMalformedXML)
		}
		number := *p.PartNumber
		if number <= last {
			return nil, s3err.GetAPIError(s3err.ErrInvalidPartOrder)
		}
		last = number
		i := slices.IndexFunc(have, func(h localstore.Part) bool { return h.Number == int(number) })
		if i < 0 || have[i].Record.ETag != unquote(*p.ETag) {
			return nil, s3err.GetInvalidPartErr(id, number, *p.ETag)
		}
		if crc, err := decodeCRC(p.ChecksumCRC32C); err != nil || crc != nil && *crc != have[i].Record.CRC {
			return nil, s3err.GetInvalidPartErr(id, number, *p.ETag)
		}
		size := have[i].Record.Size
		if size < minPart && n < len(in.MultipartUpload.Parts)-1 {
			return nil, s3err.GetEntityTooSmallErr(size, minPart)
		}
		total += size
		parts = append(parts, have[i])
	}
	if in.MpuObjectSize != nil && *in.MpuObjectSize != total {
		return nil, s3err.GetIncorrectMpObjectSizeErr(total, *in.MpuObjectSize)
	}
	return parts, nil
}

// AbortMultipartUpload aborts an upload.
func (b *backend) AbortMultipartUpload(_ context.Context, in *s3.AbortMultipartUploadInput) error {
	if err := b.has(str(in.Bucket)); err != nil {
		return err
	}
	return upload(str(in.UploadId), b.store.Abort(str(in.Key), str(in.UploadId)))
}

// ListParts lists the parts of an upload.
func (b *backend) ListParts(_ context.Context, in *s3.ListPartsInput) (out s3response.ListPartsResult, err error) {
	if err := b.has(str(in.Bucket)); err != nil {
		return out, err
	}
	parts, err := b.store.Parts(str(in.Key), str(in.UploadId))
	if err != nil {
		return out, upload(str(in.UploadId), err)
	}
	after := 0
	if m := str(in.PartNumberMarker); m != "" {
		if after, err = strconv.Atoi(m); err != nil {
			return out, s3err.GetAPIError(s3err.ErrInvalidRequest)
		}
	}
	max := int(*limit(in.MaxParts))
	out = s3response.ListPartsResult{Bucket: str(in.Bucket), Key: str(in.Key), UploadID: str(in.UploadId), StorageClass: types.StorageClassStandard,
		PartNumberMarker: after, MaxParts: max}
	for _, p := range parts {
		if p.Number <= after {
			continue
		}
		if len(out.Parts) == max {
			out.IsTruncated = true
			break
		}
		out.Parts = append(out.Parts, s3response.Part{PartNumber: p.Number, ETag: *quoted(p.Record.ETag), Size: p.Record.Size,
			LastModified: time.Unix(0, p.Record.Modified).UTC(), ChecksumCRC32C: encodeCRC(p.Record.CRC)})
		out.NextPartNumberMarker = p.Number
	}
	return out, nil
}

// ListMultipartUploads lists the unfinished uploads.
func (b *backend) ListMultipartUploads(_ context.Context, in *s3.ListMultipartUploadsInput) (out s3response.ListMultipartUploadsResult, err error) {
	if err := b.has(str(in.Bucket)); err != nil {
		return out, err
	}
	all, err := b.store.Uploads(str(in.Prefix))
	if err != nil {
		return out, answer(err)
	}
	var uploads []s3response.Upload
	marker, idMarker := str(in.KeyMarker), str(in.UploadIdMarker)
	for _, u := range all {
		if marker != "" && (u.Record.Key < marker || u.Record.Key == marker && idMarker == "") {
			continue
		}
		uploads = append(uploads, s3response.Upload{Key: u.Record.Key, UploadID: u.ID, StorageClass: types.StorageClassStandard, Initiated: time.Unix(0, u.Record.Modified)})
	}
	slices.SortFunc(uploads, func(a, c s3response.Upload) int {
		if order := strings.Compare(a.Key, c.Key); order != 0 {
			return order
		}
		return a.Initiated.Compare(c.Initiated)
	})
	max := maxListed
	if in.MaxUploads != nil {
		max = min(max, int(*in.MaxUploads))
	}
	p, err := versity.ListMultipartUploads(uploads, str(in.Prefix), str(in.Delimiter), marker, idMarker, max)
	if err != nil {
		return out, err
	}
	return s3response.ListMultipartUploadsResult{Bucket: str(in.Bucket), KeyMarker: marker, UploadIDMarker: idMarker, NextKeyMarker: p.NextKeyMarker,
		NextUploadIDMarker: p.NextUploadIDMarker, Delimiter: str(in.Delimiter), Prefix: str(in.Prefix), MaxUploads: max, IsTruncated: p.IsTruncated,
		Uploads: p.Uploads, CommonPrefixes: p.CommonPrefixes}, nil
}
