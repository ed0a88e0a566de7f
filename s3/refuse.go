package s3

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"
)

// The library ignores unknown headers and query arguments: a PUT of an unknown
// subresource would then be a PUT of the object. So this endpoint refuses, before
// it does anything, a request for more than it supports.

// subresources are the query arguments that a request with side effects may have, by
// method. They select a part of the object or bucket, or qualify the request. The
// endpoint refuses all others. It has no bucket configuration to set.
var (
	objectArgs = map[string][]string{
		http.MethodPut:    {"uploadId", "partNumber", "tagging", "versionId"},
		http.MethodDelete: {"uploadId", "tagging", "versionId"},
		http.MethodPost:   {"uploadId", "uploads"},
	}
	bucketArgs = map[string][]string{
		http.MethodPut:    {"acl", "cors", "object-lock", "ownershipControls", "policy", "tagging", "versioning", "website"},
		http.MethodDelete: {"cors", "ownershipControls", "policy", "tagging", "website"},
		http.MethodPost:   {"delete"},
	}
	// unreadable are the subresources of S3 that the library would answer with the
	// object, or the listing, itself. (It answers others with NotImplemented.)
	unreadable = []string{"torrent", "session", "abac", "metadataConfiguration", "metadataTable", "metadataInventoryTable", "metadataJournalTable"}
)

// sse is the prefix of the headers that request encryption at rest.
const sse = "x-amz-server-side-encryption"

// refuse is the middleware that answers NotImplemented to unsupported requests.
func refuse(c fiber.Ctx) error {
	if c.Method() == http.MethodOptions {
		// A browser sends a preflight request without a key. None is allowed, since
		// no bucket has rules, and the library's own answer would reveal whether
		// the bucket exists.
		return s3err.GetAPIError(s3err.ErrCORSIsNotEnabled)
	}
	if _, err := url.PathUnescape(string(c.Request().URI().PathOriginal())); err != nil {
		return s3err.APIError{Code: "InvalidURI", Description: "The path has an invalid escape.", HTTPStatusCode: http.StatusBadRequest}
	}
	var err error
	for name, value := range c.Request().Header.All() {
		if err = refusedHeader(strings.ToLower(string(name)), string(value)); err != nil {
			return err
		}
	}
	method := c.Method()
	allowed, read := allowedArgs(method, c.Request().URI().PathOriginal())
	for name := range c.Request().URI().QueryArgs().All() {
		if err = refusedArg(method, string(name), string(c.Request().URI().QueryArgs().PeekBytes(name)), allowed, read); err != nil {
			return err
		}
	}
	if _, changes := objectArgs[method]; changes && c.Get("If-Unmodified-Since") != "" {
		return notKept("a change under If-Unmodified-Since (If-Match with the ETag is supported)")
	}
	conditional := c.Get("If-Match") != "" || c.Get("If-None-Match") != ""
	if args := c.Request().URI().QueryArgs(); method == http.MethodPut && args.Has("versionId") && !args.Has("tagging") {
		return notKept("a PUT of a version (?versionId)")
	}
	if args := c.Request().URI().QueryArgs(); conditional && method == http.MethodPut && (args.Has("uploadId") || args.Has("tagging")) {
		return notKept("a condition on a part of an upload, or on tags")
	}
	return nil
}

// allowedArgs returns the arguments that a request may have, and whether it only
// reads.
func allowedArgs(method string, path []byte) (allowed []string, read bool) {
	table := bucketArgs
	if _, key, ok := strings.Cut(strings.TrimPrefix(string(path), "/"), "/"); ok && key != "" {
		table = objectArgs
	}
	allowed, changes := table[method]
	return allowed, !changes
}

// refusedHeader says why a header cannot be obeyed. It returns nil if the header
// can be obeyed or may be ignored. The name is in lower case.
func refusedHeader(name, value string) error {
	switch {
	case strings.HasPrefix(name, sse), strings.HasPrefix(name, "x-amz-copy-source-server-side-encryption"):
		return notKept("encryption by the server (" + name + ")")
	case name == "x-amz-write-offset-bytes":
		return notKept("a write at an offset (" + name + ")")
	case name == "x-amz-storage-class" && value != "" && value != "STANDARD":
		return notKept("storage class " + value)
	case name == "x-amz-object-ownership" && value != "" && value != string(types.ObjectOwnershipBucketOwnerEnforced):
		return notKept("object ownership " + value + " (the bucket's owner owns its objects)")
	case name == "x-amz-acl" && value != "" && value != "private" && value != "bucket-owner-full-control",
		strings.HasPrefix(name, "x-amz-grant-"):
		return notKept("an access list (" + name + ")")
	}
	return nil
}

// refusedArg is the same for an argument. S3 also accepts most of its headers as
// arguments of a presigned URL.
func refusedArg(method, name, value string, allowed []string, read bool) error {
	lower := strings.ToLower(name)
	if strings.HasPrefix(lower, "x-amz-") {
		if !read && strings.HasPrefix(lower, "x-amz-meta-") {
			return notKept("metadata in the query (" + name + ")")
		}
		return refusedHeader(lower, value)
	}
	switch {
	case name == "x-id": // the SDKs put the name of a request here
		return nil
	case read && !slices.Contains(unreadable, name), !read && slices.Contains(allowed, name):
		return nil
	}
	return notKept(fmt.Sprintf("%s ?%s", method, name))
}

// refusedForm says why a field of a browser's form cannot be obeyed. The library
// has read the fields only when it calls the backend.
func refusedForm(rc context.Context) error {
	r, ok := rc.(*fasthttp.RequestCtx)
	if !ok {
		return nil
	}
	form, ok := r.UserValue(string(utils.ContextKeyObjectPostResult)).(middlewares.PostObjectResult)
	if !ok {
		return nil
	}
	for name, value := range form.Fields {
		if name == "acl" {
			name = "x-amz-acl"
		}
		if err := refusedHeader(strings.ToLower(name), value); err != nil {
			return err
		}
	}
	return nil
}

// notKept is the answer to a request for an unsupported feature.
func notKept(what string) error {
	e := s3err.GetAPIError(s3err.ErrNotImplemented).BaseError()
	e.Description = "This endpoint does not support what the request asks for: " + what + ". Nothing was changed."
	return e
}
