package s3

import (
	"context"
	"encoding/base64"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/valyala/fasthttp"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"
)

// maxListed is the most items of one page of a listing.
const maxListed = 1000

// listing is a request for a page.
type listing struct {
	bucket, prefix, delimiter string
	after                     string
	max                       int
}

// page is the answer to one.
type page struct {
	objects  []item
	prefixes []string
	// next is where the next page continues; empty if there is none.
	next string
}

// list collects a page. Keys that are put or deleted meanwhile may or may not
// appear; all others appear once, in order.
func (t *tree) list(ctx context.Context, l listing) (page, error) {
	var p page
	if err := t.mustBucket(ctx, l.bucket); err != nil {
		return p, err
	}
	if l.max <= 0 {
		return p, nil
	}
	last, more := "", false
	w := walker{tree: t, ctx: ctx, bucket: l.bucket, prefix: l.prefix, after: l.after, fold: l.delimiter == "/"}
	w.yield = func(it item) bool {
		it = l.folded(it)
		if it.folded && (it.key == last || it.key <= l.after && !strings.HasPrefix(l.after, it.key) || it.key == l.after) {
			return true
		}
		if len(p.objects)+len(p.prefixes) == l.max {
			more = true
			return false
		}
		if last = it.key; it.folded {
			p.prefixes = append(p.prefixes, it.key)
		} else {
			p.objects = append(p.objects, it)
		}
		return true
	}
	if err := w.walk(); err != nil {
		return page{}, err
	}
	if more {
		p.next = last
	}
	return p, nil
}

// folded is what an item becomes if keys are folded at a delimiter.
func (l *listing) folded(it item) item {
	if l.delimiter == "" || it.folded {
		return it
	}
	rest := it.key[len(l.prefix):]
	if i := strings.Index(rest, l.delimiter); i >= 0 {
		return item{key: it.key[:len(l.prefix)+i+len(l.delimiter)], folded: true}
	}
	return it
}

// escaper returns how a reply encodes names: unchanged or, if the request wants it,
// as in a URL. XML cannot hold every character of a key.
func escaper(rc context.Context) (func(string) string, types.EncodingType) {
	if r, ok := rc.(*fasthttp.RequestCtx); ok && string(r.QueryArgs().Peek("encoding-type")) == string(types.EncodingTypeUrl) {
		return func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "%2F", "/") }, types.EncodingTypeUrl
	}
	return func(s string) string { return s }, ""
}

func (p *page) contents(escape func(string) string) []s3response.Object {
	out := make([]s3response.Object, 0, len(p.objects))
	for _, it := range p.objects {
		o := object{attr: it.attr}
		key, tag, size, mtime := escape(it.key), etag(it.attr), o.size(), o.mtime()
		out = append(out, s3response.Object{Key: &key, ETag: &tag, Size: &size, LastModified: &mtime, StorageClass: types.ObjectStorageClassStandard})
	}
	return out
}

func (p *page) commonPrefixes(escape func(string) string) []types.CommonPrefix {
	out := make([]types.CommonPrefix, 0, len(p.prefixes))
	for _, s := range p.prefixes {
		s = escape(s)
		out = append(out, types.CommonPrefix{Prefix: &s})
	}
	return out
}

// limit is the requested page size.
func limit(max *int32) (int, *int32) {
	n := int32(maxListed)
	if max != nil {
		n = min(n, *max)
	}
	return int(n), &n
}

// ListObjects lists objects by S3's first version of listings.
func (b *backend) ListObjects(rc context.Context, in *s3.ListObjectsInput) (s3response.ListObjectsResult, error) {
	max, shown := limit(in.MaxKeys)
	p, err := b.tree.list(b.life, listing{bucket: str(in.Bucket), prefix: str(in.Prefix), delimiter: str(in.Delimiter), after: str(in.Marker), max: max})
	if err != nil {
		return s3response.ListObjectsResult{}, b.requests.answer(rc, "ListObjects", err)
	}
	escape, encoding := escaper(rc)
	prefix, marker, delimiter, truncated := escape(str(in.Prefix)), escape(str(in.Marker)), escape(str(in.Delimiter)), p.next != ""
	return s3response.ListObjectsResult{Name: in.Bucket, Prefix: &prefix, Marker: &marker, Delimiter: ptr(delimiter), MaxKeys: shown,
		IsTruncated: &truncated, NextMarker: ptr(escape(p.next)), EncodingType: encoding,
		Contents: p.contents(escape), CommonPrefixes: p.commonPrefixes(escape)}, nil
}

// ListObjectsV2 lists objects.
func (b *backend) ListObjectsV2(rc context.Context, in *s3.ListObjectsV2Input) (s3response.ListObjectsV2Result, error) {
	after := str(in.StartAfter)
	if t := str(in.ContinuationToken); t != "" {
		key, err := base64.RawURLEncoding.DecodeString(t)
		if err != nil {
			return s3response.ListObjectsV2Result{}, s3err.GetAPIError(s3err.ErrInvalidRequest)
		}
		after = string(key)
	}
	max, shown := limit(in.MaxKeys)
	p, err := b.tree.list(b.life, listing{bucket: str(in.Bucket), prefix: str(in.Prefix), delimiter: str(in.Delimiter), after: after, max: max})
	if err != nil {
		return s3response.ListObjectsV2Result{}, b.requests.answer(rc, "ListObjectsV2", err)
	}
	escape, encoding := escaper(rc)
	prefix, truncated, count := escape(str(in.Prefix)), p.next != "", int32(len(p.objects)+len(p.prefixes))
	return s3response.ListObjectsV2Result{Name: in.Bucket, Prefix: &prefix, StartAfter: ptr(escape(str(in.StartAfter))),
		Delimiter: ptr(escape(str(in.Delimiter))), ContinuationToken: ptr(str(in.ContinuationToken)),
		NextContinuationToken: ptr(base64.RawURLEncoding.EncodeToString([]byte(p.next))), KeyCount: &count, MaxKeys: shown,
		IsTruncated: &truncated, EncodingType: encoding, Contents: p.contents(escape), CommonPrefixes: p.commonPrefixes(escape)}, nil
}
